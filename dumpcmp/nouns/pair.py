"""A value of golden beside its partner in the target: the Pair, and what measuring it gave."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Metrics, PairedBy, ReferenceErrors


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A value of golden and its partner, or one of them alone. Each Pair equals itself only."""

    golden: Key | None
    target: Key | None
    by: PairedBy = PairedBy.NOTHING
    inside: str = ""  # of one alone: the kernel of a compiled target that it is a part of
    repeats: Pair | None = None  # the first appearance of a value that both sides had before

    @property
    def both(self) -> bool:
        """Whether both sides have it."""
        return self.golden is not None and self.target is not None

    @property
    def key(self) -> Key:
        """What the value is called: golden's name, where golden has it and computed it itself."""
        moved = self.by is PairedBy.COLLECTIVE
        key = self.target if moved and self.target else self.golden or self.target
        assert key is not None, "a Pair has at least one side"
        return key


class Trouble(StrEnum):
    """Why a pair has no numbers."""

    UNREADABLE = "unreadable"  # a side is not stored, or its file is damaged
    SHAPE = "shape"  # the sides have different shapes
    UNSOLVED = "unsolved"  # no layout makes the ranks' shards a whole value
    UNCHECKED = "unchecked"  # what a collective should have given is not known


@dataclass(frozen=True, slots=True)
class LaidOut:
    """How both sides of a partitioned pair became whole, and what was noticed on the way."""

    note: str = ""  # how the shards became whole
    layout: str = ""  # the target's, as a sentence
    is_solved: bool = False  # nobody stated it
    finding: str = ""  # replicas that differ, whatever the metrics say
    remark: str = ""  # what a difference looks like, rank by rank


@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring a pair gave: Metrics, or the trouble and a sentence on it. No opinion."""

    metrics: Metrics | None = None
    trouble: Trouble | None = None
    said: str = ""
    reference: ReferenceErrors | None = None
    laid: LaidOut | None = None
    rank: int | None = None  # of a collective alone: who got what is farthest from what it should


UNMEASURED = Measured()  # one side is alone: there was nothing to measure
