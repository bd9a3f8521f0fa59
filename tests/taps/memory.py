"""A Sink that keeps everything in memory, as numpy arrays."""

import numpy as np

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Record, Source
from dumpcmp.nouns.value import dtype_named


class MemorySink:
    """Keeps calls, records and values; checks what every Sink may rely on."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.effects: list[Call] = []
        self.records: dict[Key, Record] = {}
        self.values: dict[Key, np.ndarray] = {}
        self.texts: dict[tuple[str, str], str] = {}
        self._open: set[tuple[str, int, str, int]] = set()

    def call(self, call: Call) -> None:
        name = (call.model, call.step, call.op, call.call)
        assert name not in self._open, f"call {name} came twice"
        self._open.add(name)
        (self.effects if call.op.is_effect else self.calls).append(call)

    def put(self, record: Record, source: Source | None) -> None:
        key = record.key
        assert key not in self.records, f"{key} came twice"
        assert (key.model, key.step, key.op, key.call) in self._open, f"{key} came before its call"
        self.records[key] = record
        if record.same_as is not None:
            self.values[key] = self.values[record.same_as]
        elif source is not None:
            room = bytearray(source.nbytes)
            wait = source.copy_into(memoryview(room))
            if wait is not None:
                wait()
            storage = np.dtype(dtype_named(record.dtype).storage)
            self.values[key] = np.frombuffer(room, storage).reshape(record.shape)

    def text(self, model: str, name: str, text: str) -> None:
        self.texts[model, name] = text

    def ops(self) -> list[str]:
        return [f"{call.op}#{call.call}" for call in self.calls]
