"""Archives of runs that nobody ran: any number of ranks, steps and values, of tiny tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record

ARGUMENTS = '{"args":[{"slot":"input.0"}],"kwargs":{}}'
_RING = 4 << 20


@dataclass(frozen=True)
class Shape:
    """How much a run has: each op takes what the one before it gave, and gives one value."""

    ranks: int = 1
    steps: int = 1
    ops: int = 100  # of a step
    elements: int = 4  # of a value on one rank

    @property
    def num_values(self) -> int:
        """Values on all ranks."""
        return self.ranks * self.steps * self.ops * 2


class Elements:
    """A Source over an array."""

    def __init__(self, bits: NDArray[np.float32]) -> None:
        self._bytes = bits.view(np.uint8).data
        self.nbytes = bits.nbytes

    def copy_into(self, room: memoryview) -> None:
        room[:] = self._bytes


def write(
    path: Path, shape: Shape, *, apart: float = 0.0, every: int = 10, shards: bool = False
) -> None:
    """Write a run; what one op in `every` gives is `apart` from what it should be, relatively.

    Ranks hold shards of a value, as their layout says, or one rank holds all of it.
    """
    for rank in range(shape.ranks if shards else 1):
        sink = ArchiveWriter(
            path,
            rank=rank,
            world_size=shape.ranks if shards else 1,
            ring_nbytes=_RING,
            memory="private",
            run={"mode": "eager"},
        )
        with sink:
            for step in range(shape.steps):
                for call, records in _step(shape, step, rank, shards, apart, every):
                    sink.call(call)
                    for record, bits in records:
                        sink.put(record, Elements(bits) if bits is not None else None)


_Values = list[tuple[Record, NDArray[np.float32] | None]]


def _step(
    shape: Shape, step: int, rank: int, shards: bool, apart: float, every: int
) -> Iterator[tuple[Call, _Values]]:
    layout = f"h[tp] @ tp:{rank}/{shape.ranks}" if shards else ""
    count = shape.elements * (1 if shards else shape.ranks)
    first = rank * count
    before: Key | None = None
    for order in range(shape.ops):
        op = Op(f"layers.{order // 10}.mlp.{order % 10}/neg")
        call = Call("Model", step, op, 0, order, "torch.neg", "model.py:7", arguments=ARGUMENTS)
        given, gave = (Key("Model", step, op, 0, slot) for slot in ("input.0", "output.0"))
        bits = np.arange(first, first + count, dtype=np.float32) % 1024 + 1 + step % 1024
        bits = -bits if order % 2 else bits
        if order % every == every - 1:
            bits *= np.float32(1 + apart)
        taken = Record(given, order, "float32", (count,), (1,), layout=layout, same_as=before)
        made = Record(gave, order, "float32", (count,), (1,), layout=layout, rank=rank)
        yield call, [(taken, None if before else -bits), (made, bits)]
        before = gave
