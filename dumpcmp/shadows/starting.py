"""The start of two runs: which leaf of golden is which of the target's, and where they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import UNWRITTEN, Kept, Record
from dumpcmp.shadows.program import Program, ValueId
from dumpcmp.shadows.quantities import Book, Quantity
from dumpcmp.shadows.running import Shadow, load

Name = tuple[str, int, str]  # of a value within its step


@dataclass(frozen=True, slots=True)
class LeafPair:
    """A leaf of golden and the target's of the same name, which holds other bytes."""

    golden: ValueId
    target: ValueId
    is_cast: bool  # one is the other, rounded to a shorter dtype


@dataclass(eq=False)
class Start:
    """The leaves of both runs of one step."""

    book: Book
    _targets: dict[Name, list[ValueId]] = field(default_factory=dict)
    _of_target: dict[ValueId, Quantity] = field(default_factory=dict)
    _records: dict[ValueId, Record] = field(default_factory=dict)
    differing: list[LeafPair] = field(default_factory=list)
    alone: list[ValueId] = field(default_factory=list)  # golden's, of no name that the target has
    _digests: dict[str, set[str]] = field(default_factory=dict)  # of leaves, by side

    def know(self, side: str, program: Program) -> None:
        """Learn which bytes a run started from, before either is followed."""
        records = (program.records[leaf] for leaf in program.leaves)
        self._digests[side] = {record.digest for record in records if _is_telling(record)}

    def precomputed(self, other: str, shadow: Shadow, value: ValueId) -> Quantity | None:
        """What was recorded of a computed value, where the `other` run started from those bytes.

        One run computes what the other has in a buffer or a cache, which was rounded when it was
        made: both go on from there.
        """
        record = shadow.record(value)
        if not _is_telling(record) or record.digest not in self._digests.get(other, ()):
            return None
        return self.book.leaf(identity(record), partial(load, shadow.archive, record))

    def of_target(self, shadow: Shadow, value: ValueId) -> Quantity:
        """The quantity of a leaf of the target: what was recorded."""
        record = shadow.record(value)
        found = self.book.leaf(identity(record), partial(load, shadow.archive, record))
        self._targets.setdefault(_name(value.key), []).append(value)
        self._of_target[value], self._records[value] = found, record
        return found

    def of_golden(self, shadow: Shadow, value: ValueId) -> Quantity:
        """The same of golden: the target's quantity, where it is the target's leaf."""
        record = shadow.record(value)
        own = partial(load, shadow.archive, record)
        found = self.book.leaf(identity(record), own)
        if any(found is each for each in self._of_target.values()):
            return found
        partner = self._partner(value, record)
        if partner is None:
            self.alone.append(value)
            return found
        is_cast = _is_cast(shadow, record, self._records[partner], self._of_target[partner])
        self.differing.append(LeafPair(value, partner, is_cast))
        return self._of_target[partner]

    def _partner(self, value: ValueId, record: Record) -> ValueId | None:
        for each in self._targets.get(_name(value.key), ()):
            if self._records[each].shape == record.shape:
                return each
        return None


def _is_telling(record: Record) -> bool:
    return bool(record.digest) and record.kept is Kept.FULL and math.prod(record.shape) > 1


def _name(key: Key) -> Name:
    return key.op, key.call, key.slot


def identity(record: Record) -> tuple[object, ...]:
    """What tells that two leaves are one: their bytes; of what has none, its name."""
    if record.problem == UNWRITTEN:
        return "unwritten", record.dtype, record.shape
    if record.digest and record.kept is Kept.FULL:
        return record.digest, record.dtype, record.shape
    return "unread", record.rank, record.key, id(record)


def _is_cast(shadow: Shadow, ours: Record, theirs: Record, target: Quantity) -> bool:
    """Whether a leaf of golden and the target's are one number but for the rounding of a dtype."""
    if ours.dtype == theirs.dtype:
        return False
    try:
        golden = load(shadow.archive, ours)
        other = target.tensor
    except DumpcmpError:
        return False
    if golden.shape != other.shape or not golden.is_floating_point():
        return False
    dtypes = getattr(torch, ours.dtype), getattr(torch, theirs.dtype)
    short = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits)
    return torch.equal(golden.to(short), other.to(short))
