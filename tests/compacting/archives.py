"""Archives to compact, written through the writer that captures use."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.dumping.retention import Budgeted
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record, Sink
from dumpcmp.nouns.value import DTYPES


class Numbers:
    """A Source over a numpy array."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = np.ascontiguousarray(bits)
        self.nbytes = self.bits.nbytes

    def copy_into(self, room: memoryview) -> None:
        room[:] = self.bits.reshape(-1).view(np.uint8).data


OPS = ("embed", "layers.0.attn", "layers.0.attn/softmax", "layers.1.mlp", "<root>")


def write_archive(
    path: Path, *, steps: int = 2, shape: tuple[int, ...] = (40, 64), seed: int = 0, **options: Any
) -> None:
    """A run of a few ops: inputs linked to the outputs before them, and a small bias."""
    with ArchiveWriter(path, run={"mode": "test"}, **options) as sink:
        for step in range(steps):
            put_step(sink, step, shape, seed)


def put_step(sink: ArchiveWriter | Budgeted, step: int, shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed + step)
    before: Key | None = None
    for order, op in enumerate(OPS):
        sink.call(Call("Model", step, Op(op), 0, order, source="model.py:3"))
        if before is not None:
            key = Key("Model", step, op, 0, "input.0")
            sink.put(Record(key, order, "float32", shape, same_as=before), None)
        before = Key("Model", step, op, 0, "output.0")
        numbers = rng.standard_normal(shape).astype(np.float32)
        put(sink, before, order, numbers)
        put(sink, Key("Model", step, op, 0, "param.bias"), order, numbers[0, :8])
    sink.finish_step("Model", step)


def put(sink: Sink, key: Key, order: int, bits: NDArray[Any], dtype: str = "float32") -> None:
    assert bits.dtype == DTYPES[dtype].storage
    stride = tuple(s // bits.itemsize for s in np.ascontiguousarray(bits).strides)
    sink.put(Record(key, order, dtype, bits.shape, stride), Numbers(bits))
