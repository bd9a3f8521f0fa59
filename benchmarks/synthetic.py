"""Archives of runs that nobody ran: any number of ranks, steps and values, of tiny tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.write.straight import (
    MOST_CALLS,
    PartPlace,
    PartTold,
    StraightRun,
    straight,
)
from dumpcmp.execute import executor_for, run_each
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record

ARGUMENTS = '{"args":[{"slot":"input.0"}],"kwargs":{}}'


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


@dataclass(frozen=True)
class Portion:
    """What one task writes of a run: some ops of some steps of a rank."""

    root: Path
    shape: Shape
    rank: int
    steps: range
    number: int  # of the part in each step
    ops: range
    apart: float
    every: int
    shards: bool


def write(
    path: Path, shape: Shape, *, apart: float = 0.0, every: int = 10, shards: bool = False,
    jobs: int = 1,
) -> None:  # fmt: skip
    """Write a run; what one op in `every` gives is `apart` from what it should be, relatively.

    Ranks hold shards of a value, as their layout says, or one rank holds all of it.
    """
    ranks = range(shape.ranks if shards else 1)
    run = StraightRun.begin(path, len(ranks), {rank: {"mode": "eager"} for rank in ranks},
                            overwrite=False)  # fmt: skip
    portions = [
        Portion(path, shape, rank, steps, number, ops, apart, every, shards)
        for rank in ranks
        for steps in _cut(shape.steps, 100)
        for number, ops in enumerate(_cut(shape.ops, MOST_CALLS))
    ]
    told = dict.fromkeys(ranks, PartTold())
    with executor_for(jobs) as executor:
        for portion, count in zip(portions, run_each(_write, portions, executor), strict=True):
            told[portion.rank] += count
    run.end(told)


def _cut(count: int, most: int) -> list[range]:
    return [range(first, min(count, first + most)) for first in range(0, count, most)]


def _write(portion: Portion) -> PartTold:
    shape, rank = portion.shape, portion.rank
    world_size, told = shape.ranks if portion.shards else 1, PartTold()
    for step in portion.steps:
        place = PartPlace(portion.root, rank, world_size, "Model", step, portion.number)
        with straight(place) as sink:
            for call, records in _calls(portion, step):
                sink.call(call)
                for record, bits in records:
                    sink.put(record, Elements(bits) if bits is not None else None)
        told += sink.told
    return told


_Values = list[tuple[Record, NDArray[np.float32] | None]]


def _calls(portion: Portion, step: int) -> Iterator[tuple[Call, _Values]]:
    shape, rank, shards, every = portion.shape, portion.rank, portion.shards, portion.every
    layout = f"h[tp] @ tp:{rank}/{shape.ranks}" if shards else ""
    count = shape.elements * (1 if shards else shape.ranks)
    first = rank * count
    before: Key | None = None  # in this part; what its first op takes has bytes of its own
    for order in portion.ops:
        op = Op(f"layers.{order // 10}.mlp.{order % 10}/neg")
        call = Call("Model", step, op, 0, order, "torch.neg", "model.py:7", arguments=ARGUMENTS)
        given, gave = (Key("Model", step, op, 0, slot) for slot in ("input.0", "output.0"))
        bits = np.arange(first, first + count, dtype=np.float32) % 1024 + 1 + step % 1024
        bits = -bits if order % 2 else bits
        if order % every == every - 1:
            bits *= np.float32(1 + portion.apart)
        taken = Record(given, order, "float32", (count,), (1,), layout=layout, same_as=before)
        made = Record(gave, order, "float32", (count,), (1,), layout=layout, rank=rank)
        yield call, [(taken, None if before else -bits), (made, bits)]
        before = gave
