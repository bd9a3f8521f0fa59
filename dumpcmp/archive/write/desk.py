"""What the producer counts, in C where it was built: plain records are laid at once there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.built import built
from dumpcmp.nouns.record import Call

_core: Any = built("dumpcmp.archive.write._desk")


class Positions:
    """Where a ring is in use, from `tail` to `head`."""

    __slots__ = (
        "asked",
        "asleep",
        "failed",
        "head",
        "reach",
        "sequence",
        "tail",
        "used",
        "wrapped",
    )

    head: int
    tail: int
    used: int
    reach: int  # bytes that are in use at all, until the disk falls behind
    sequence: int  # of the next record
    wrapped: bool
    asked: bool  # the writer was woken, and has not looked yet
    asleep: bool  # it waits to be
    failed: bool  # it writes no more


class Filling:
    """How far a part is filled, once the ring is written."""

    __slots__ = ("forms", "full", "most_nbytes", "nbytes", "nonce", "num_calls", "num_rows", "part")

    part: Any
    forms: dict[Any, int]  # those that it has, and their numbers
    nonce: int
    most_nbytes: int
    nbytes: int
    num_rows: int
    num_calls: int
    full: bool  # the next value belongs into a new part


class Footprint:
    """How much room a value takes."""

    __slots__ = ("blocks", "nbytes", "prefix_nbytes", "total")

    total: int
    nbytes: int
    prefix_nbytes: int
    blocks: int  # of the prefix


class Wording:
    """What is said of a call."""

    __slots__ = ("_described", "_path", "text")

    text: bytes
    _path: tuple[str, ...]  # of its group; empty as long as nobody has asked
    _described: tuple[bytes, int, tuple[tuple[str, str], ...]] | None


class CallPlace:
    """Where a call is declared, and where its values lie."""

    __slots__ = ("call", "earlier", "number", "plan", "slots")

    call: Call
    plan: Any
    number: int
    slots: dict[str, Any]
    earlier: dict[Any, int] | None  # its numbers in other parts


class StepPlace:
    """Where goes what comes next of a step."""

    __slots__ = ("calls", "changes_lane", "lanes", "model", "number", "plan")

    model: str
    number: int
    plan: Any
    lanes: list[Any]
    changes_lane: bool  # what comes next goes into the next of them
    calls: dict[tuple[str, int], Any]


class Pending(deque[tuple[Any, ...]]):
    """Records in the ring that are not written yet, the oldest first."""

    __slots__ = ()


class Desk:
    """Where records are laid into the ring, each by the way in Python."""

    __slots__ = ("is_open", "nbytes", "num_records", "step")

    num_records: int
    nbytes: int
    is_open: bool  # it takes plain records at once
    step: Any  # that is being written

    def prepare(self, *_: object) -> None:
        """Be ready to lay records into a ring."""
        self.is_open = False

    def know(self, *_: object) -> None:
        """Know records by their forms."""

    def tell(self, *_: object) -> None:
        """Know calls by what is said of them."""

    def lay_record(self, *_: object) -> bool | None:
        """Lay down a Record at once, if it is plain; None, or whether nobody must be woken."""

    def lay_told(self, *_: object) -> bool | None:
        """Lay down a call of which little is said; as `lay_record` does a Record."""

    def leave(self) -> None:
        """Let go of the ring's memory."""
        self.is_open = False

    def lay_call(self, *_: object) -> Any:
        """Lay down a call at once, if it is plain; gives its CallPlan, or None."""

    def lay_value(self, *_: object) -> Any:
        """Lay down a value at once, if it is plain; gives its digest, or None."""

    def lay_link(self, *_: object) -> Any:
        """Lay down a link at once, if it is plain; gives True, or None."""


if not TYPE_CHECKING and _core is not None:
    Positions, Filling, Footprint, Desk, Wording, CallPlace, StepPlace, Pending = (
        _core.Positions,
        _core.Filling,
        _core.Footprint,
        _core.Desk,
        _core.Wording,
        _core.CallPlace,
        _core.StepPlace,
        _core.Pending,
    )
