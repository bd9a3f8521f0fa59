"""What a part holds: its rows, and the calls and forms that they refer to by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import schema
from dumpcmp.archive.schema import ABSENT, Form
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op, Slot
from dumpcmp.nouns.record import Call, Kept, Location
from dumpcmp.nouns.value import DTYPES

_NUM_FIELDS = len(schema.CALL_FIELDS)
LISTED_LOST = json.loads(schema.call_json(schema.LOST_CALL))


class ListedCalls(Sequence[Any]):
    """The calls of a part as its index lists them, and as they were read of a model's step.

    Ranks that ran the same list the same bytes, and then share one of these. What `unpack` gives is
    asked for when a call is.
    """

    __slots__ = ("__weakref__", "_listed", "_unpack", "ops", "read")

    def __init__(
        self, listed: Iterable[Any] = (), unpack: Callable[[], Iterable[Any]] | None = None
    ) -> None:
        self._unpack = unpack
        self._listed = None if unpack else list(map(schema.completed_call, listed))
        self.ops: list[tuple[Op, int]] | None = None  # until they are asked for, and found right
        self.read: dict[tuple[str, int], dict[int, Call]] = {}

    @property
    def is_read(self) -> bool:
        """Whether the calls are known, and not only where they are told."""
        return self._listed is not None

    @property
    def listed(self) -> list[Any]:
        """The calls, each as a list of CALL_FIELDS, if it is sound."""
        if self._listed is None:
            assert self._unpack is not None
            self._listed = list(map(schema.completed_call, self._unpack()))
            self._unpack = None
        return self._listed

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, number: Any) -> Any:
        return self.listed[number]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ListedCalls) and self.listed == other.listed)

    __hash__ = object.__hash__


@dataclass(eq=False)
class Contents:
    """The rows of a part, and the calls and forms that they refer to by number."""

    path: Path
    rows: NDArray[np.void]
    listed_calls: ListedCalls
    forms: list[Form]
    model: str = ""
    step: int = 0
    sealed: bool = False  # the part has its index: nothing more will be written to it
    problems: tuple[str, ...] = ()
    elsewhere: Mapping[int, tuple[Path, int]] = field(default_factory=dict)  # row -> another file
    datasets: Mapping[int, str] = field(default_factory=dict)  # row -> what cannot be mapped
    missing: Mapping[int, str] = field(default_factory=dict)  # row -> why its bytes are not there

    def __post_init__(self) -> None:
        """Raise where a row refers to a call or form that does not exist, as far as they are known.

        Calls that are not read yet are held against the rows when they are asked for.
        """
        self._check("form", len(self.forms))
        if self.listed_calls.is_read:
            _ = self.ops

    def _check(self, column: str, limit: int) -> None:
        numbers = self.rows[column][self.rows["call"] != ABSENT]
        if numbers.size and int(numbers.max()) >= limit:
            raise damaged(self.path, f"a {column} below {limit}", int(numbers.max()))

    @cached_property
    def ops(self) -> list[tuple[Op, int]]:
        """Op and number of each call."""
        if self.listed_calls.ops is None:
            self.listed_calls.ops = [self._op(listed) for listed in self.listed_calls.listed]
        self._check("call", len(self.listed_calls.ops))
        return self.listed_calls.ops

    def _op(self, listed: Any) -> tuple[Op, int]:
        if isinstance(listed, list) and len(listed) == _NUM_FIELDS:
            op, call = listed[:2]
            if isinstance(op, str) and isinstance(call, int):
                return Op(op), call
        raise damaged(self.path, "a call", listed)

    @cached_property
    def effects(self) -> frozenset[int]:
        """The numbers of those calls that are effects, which no op of the program made."""
        return frozenset(n for n, (op, _) in enumerate(self.ops) if op.is_effect)

    @cached_property
    def slots(self) -> list[Slot]:
        """The slot of each form."""
        return [Slot(form.slot) for form in self.forms]

    @cached_property
    def places(self) -> dict[tuple[str, int, str], int]:
        """The row of each value by its name; the first of a name stays."""
        ops, slots = self.ops, self.slots
        calls, forms = self.rows["call"].tolist(), self.rows["form"].tolist()
        found: dict[tuple[str, int, str], int] = {}
        for row, (call, form) in enumerate(zip(calls, forms, strict=True)):
            if call != ABSENT:
                found.setdefault((*ops[call], slots[form]), row)
        return found

    def calls(self) -> dict[int, Call]:
        """The calls by their numbers, checked; those that were lost are left out."""
        place = (self.model, self.step)
        if place not in self.listed_calls.read:
            self.listed_calls.read[place] = self._read_calls()
        return self.listed_calls.read[place]

    def effect_calls(self) -> dict[int, Call]:
        """Those of the calls that are effects; no other is read."""
        place = (self.model, self.step)
        known = self.listed_calls.read.get(place)
        numbers = sorted(self.effects)
        if known is not None:
            return {number: known[number] for number in numbers if number in known}
        listed = self.listed_calls.listed
        return {number: self._read_call(listed[number]) for number in numbers}

    def _read_calls(self) -> dict[int, Call]:
        every = enumerate(self.listed_calls.listed)
        return {number: self._read_call(one) for number, one in every if one != LISTED_LOST}

    def _read_call(self, listed: Any) -> Call:
        try:
            return schema.read_call(listed, self.model, self.step)
        except (TypeError, ValueError):
            raise damaged(self.path, "a call", listed) from None

    def unknown(self) -> Iterator[str]:
        """What is to be said of values that nobody here can read."""
        for form in self.forms:
            if form.problem.startswith(UNKNOWN_DTYPE):
                yield f"{self.path}: {form.slot}: {form.problem}"

    def has_row(self, row: int) -> bool:
        """Whether `row` is there and was not lost."""
        return row < len(self.rows) and self.row(row)[0] != ABSENT

    def row(self, row: int) -> tuple[Any, ...]:
        """The columns of `row`."""
        found: tuple[Any, ...] = self.rows[row].item()
        return found

    def name(self, row: int) -> tuple[str, int, str]:
        """Op, call and slot of the value in `row`."""
        call, form = self.row(row)[:2]
        return *self.ops[call], self.forms[form].slot

    def location(self, row: int, offset: int, nbytes: int) -> Location:
        """Where the bytes of `row` lie, which are at `offset` unless another file has them."""
        path, offset = self.elsewhere.get(row, (self.path, offset))
        return Location(path, offset, nbytes, self.datasets.get(row, ""))


def damaged(path: Path, what: str, found: Any) -> ArchiveError:
    """The error of an index that has `found` where `what` should be."""
    return ArchiveError(
        f"{path}: {what} should be here, not {str(found)[:80]!r}",
        hint="the index is damaged; dumpcmp audit says what is left of the part",
    )


UNKNOWN_DTYPE = "elements of a type that this dumpcmp does not know: "


def known_form(form: Form) -> Form:
    """`form`, or of elements that nobody here can read a form that says so: one row, no more."""
    dtype, shape = form.held
    if form.kept is Kept.NOTHING or (dtype in DTYPES and len(shape) <= schema.MAX_RANK):
        return form
    problem = f"{UNKNOWN_DTYPE}{dtype[:40]}, {len(shape)} dims"
    return replace(form, kept=Kept.NOTHING, stored=None, problem=problem)


def check_known(path: Path, forms: Iterable[Form]) -> None:
    """Refuse to write a part anew of which not everything can be read here."""
    for form in forms:
        if form.problem.startswith(UNKNOWN_DTYPE):
            raise ArchiveError(
                f"{path} holds {form.problem}; the part stays as it is",
                hint="a later version of dumpcmp wrote it, or it is damaged: dumpcmp audit",
            )


def read_forms(path: Path, listed: Iterable[Any]) -> list[Form]:
    """The forms that the part at `path` lists; None stands for one that was lost."""
    found = []
    for each in listed:
        try:
            found.append(schema.LOST_FORM if each is None else known_form(schema.read_form(each)))
        except (TypeError, ValueError):
            raise damaged(path, "a form", each) from None
    return found
