"""Values, Records and sinks that the archive's tests write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import DTYPES

# Bits of every dtype that stand for numbers which all tools print alike.
SMALL_NUMBERS = {
    "float64": np.array([0.0, -1.5, 3.25]),
    "float32": np.array([0.0, -1.5, 3.25], np.float32),
    "float16": np.array([0.0, -1.5, 3.25], np.float16),
    "bfloat16": np.array([0x0000, 0xBFC0, 0x4050], np.uint16),
    "float8_e4m3fn": np.array([0x00, 0xBC, 0x45], np.uint8),
    "float8_e5m2": np.array([0x00, 0xBE, 0x43], np.uint8),
    "complex64": np.array([0, -1.5 + 2j, 3.25], np.complex64),
    "complex128": np.array([0, -1.5 + 2j, 3.25]),
    "bool": np.array([True, False, True]),
    **{f"int{n}": np.array([0, -7, 100], f"i{n // 8}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": np.array([0, 7, 200], f"u{n // 8}") for n in (8, 16, 32, 64)},
}
assert SMALL_NUMBERS.keys() == DTYPES.keys()


class Dense:
    """A Source over a numpy array; `wait` stands for a copy that ends later."""

    def __init__(self, bits: NDArray[np.generic], wait: Callable[[], None] | None = None) -> None:
        self.bits = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
        self.wait = wait

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        if self.wait is None:
            room[:] = self.bits.data
            return None

        def finish() -> None:
            assert self.wait is not None
            self.wait()
            room[:] = self.bits.data

        return finish


def key(op: str = "layers.0", slot: str = "output.0", step: int = 0, call: int = 0) -> Key:
    return Key("Model", step, op, call, slot)


def record(
    name: Key, bits: NDArray[np.generic], dtype: str | None = None, order: int = 0
) -> Record:
    """The Record of `bits`, strides and all."""
    stride = tuple(step // bits.itemsize for step in bits.strides)
    return Record(name, order, dtype or bits.dtype.name, bits.shape, stride)


def put(sink: ArchiveWriter, name: Key, bits: NDArray[np.generic], order: int = 0) -> None:
    sink.put(record(name, bits, order=order), Dense(bits))


def parts(path: Path) -> list[Path]:
    return sorted(path.rglob("part-*.h5"))


def loaded(archive: Archive, name: Key) -> NDArray[np.generic]:
    return archive.load(archive[name]).bits
