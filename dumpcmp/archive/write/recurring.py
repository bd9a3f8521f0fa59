"""What comes again in later steps: it is laid into a shared part once, and steps lead there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dumpcmp.archive.paths import dataset_path, part_name
from dumpcmp.archive.schema import MAX_LINKS, SHARED, SHARED_DIRECTORY, SHARED_STEP
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.archive.write.pens import Errand, Flight
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept

LEAST_NBYTES = 1 << 14  # of a record: what says where a smaller one lies is worth as much
WIDE_NBYTES = 16 << 20  # of a value after which another part goes on, as in steps
MOST_KNOWN = 1 << 17  # digests that are kept in mind


class SharedPlace(NamedTuple):
    """Where a value lies that steps share."""

    part: int  # as steps number it
    row: int
    path: str  # of its dataset there
    told: tuple[Any, ...]  # its row, as one of a step leads there
    form: Template

    def is_alike(self, form: Template) -> bool:
        """Whether the dataset says of its elements what `form` does."""
        one, other = self.form.form, form.form
        return form is self.form or (
            one.held == other.held and one.kept is other.kept and one.stored == other.stored
        )


@dataclass(eq=False, slots=True)
class _Lane:
    """A shared part that is being written, its calls by op and its forms."""

    part: Part
    calls: Counter[str] = field(default_factory=Counter)
    forms: dict[Template, int] = field(default_factory=dict)


class Coming(NamedTuple):
    """A large value that is under way to its step's part, and what is to be done once it is."""

    flight: Flight
    settle: Errand


class Recurring:
    """The values of one model that came in one step, and those that came in others again.

    A value whose bytes an earlier step had is laid into a shared part, and so are parameters and
    buffers in the first step, since they will come again. One thread at a time uses this.
    """

    def __init__(
        self, model: Path, facts: dict[str, Any], most_nbytes: int, num_lanes: int = 1
    ) -> None:
        # by digest: the step that had it, or where it lies
        self.known: dict[str, int | SharedPlace] = {}
        self.num_values = self.nbytes = 0  # that lie in shared parts, and that are there already
        self.samples: dict[tuple[int, int], Coming | None] = {}  # of large values that came
        self.coming: dict[tuple[int, int], Flight] = {}  # to shared parts and rows, until it lands
        self._directory, self._facts = model / SHARED_DIRECTORY, {**facts, "step": SHARED_STEP}
        self._most_nbytes, self._num_lanes = most_nbytes, num_lanes
        self._first: int | None = None
        self._num_parts = 0
        self._lanes: list[_Lane] = []  # parts that are being written, large values to each in turn
        self._turn = 0

    def begin_step(self, step: int) -> None:
        """Know that a part of `step` begins."""
        if self._first is None:
            self._first = step

    def is_first(self, step: int) -> bool:
        """Whether nothing of the run came before it."""
        return step == self._first

    def find(self, digest: str, form: Template) -> SharedPlace | None:
        """Where the value lies, if it is shared already."""
        found = self.known.get(digest)
        if isinstance(found, SharedPlace):
            return found if found.is_alike(form) else None
        return None

    def is_due(self, digest: str, form: Template, step: int) -> bool:
        """Whether the value is to be laid into a shared part now; it is kept in mind elsewhere."""
        if form.form.kept is Kept.NOTHING:
            return False
        found = self.known.setdefault(digest, step)
        if isinstance(found, SharedPlace):
            return False
        return found != step or self.lasts(form, step)

    def lasts(self, form: Template, step: int) -> bool:
        """Whether a value of this form will come again: a parameter or buffer of the first step."""
        return step == self._first and form.is_weight

    def declare(self, op: str, form: Template) -> tuple[Part, Owner, str]:
        """Tell the shared part of what comes next: the part, the owner of its row, and its path."""
        lane = self._next_lane(form.nbytes)
        part, number = lane.part, lane.calls[op]
        lane.calls[op] += 1
        part.append_call(Call(self._facts["model"], -1, Op(op), number, part.num_rows))
        if form not in lane.forms:
            lane.forms[form] = part.append_form(form)
        owner = (len(part.told) - 1, form, lane.forms[form], part.num_rows)
        return part, owner, dataset_path(op, number, form.form.slot)

    def _next_lane(self, nbytes: int) -> _Lane:
        """Where a value of `nbytes` goes: after a large one, the next goes into another part."""
        if self._turn == len(self._lanes):
            self._lanes.append(_Lane(self._new_part()))
        lane = self._lanes[self._turn]
        if nbytes >= WIDE_NBYTES:
            self._turn = (self._turn + 1) % self._num_lanes
        return lane

    def keep(self, part: Part, path: str, form: Template) -> SharedPlace:
        """Keep in mind that the last value of `part` lies there."""
        row, number = part.num_rows - 1, SHARED + part.number
        told = part.row(row)
        place = SharedPlace(number, row, path, (*told[:3], number, *told[4:]), form)
        self.known[told[-1].decode()] = place
        return place

    def count(self, place: SharedPlace, *, is_new: bool) -> None:
        """Count a value that leads to `place`."""
        self.num_values += 1
        self.nbytes += 0 if is_new else place.form.nbytes

    @property
    def is_full(self) -> bool:
        """Whether what comes next belongs into new parts."""
        return any(
            lane.part.end >= self._most_nbytes or len(lane.part.told) >= MAX_LINKS // 2
            for lane in self._lanes
        )

    def release(self) -> list[Part]:
        """The parts that nothing more is laid into, to be sealed; what is known is kept small."""
        parts = [lane.part for lane in self._lanes]
        self._lanes, self._turn = [], 0
        self.coming = {at: each for at, each in self.coming.items() if each.num_left}
        if len(self.samples) > MOST_KNOWN:
            self.samples = {at: each for at, each in self.samples.items() if each is not None}
        if len(self.known) > MOST_KNOWN:
            latest = max((each for each in self.known.values() if isinstance(each, int)), default=0)
            self.known = {
                digest: each
                for digest, each in self.known.items()
                if isinstance(each, SharedPlace) or each == latest
            }
        if len(self.known) > MOST_KNOWN:
            self.known.clear()
        return parts

    def _new_part(self) -> Part:
        self._directory.mkdir(exist_ok=True)
        facts = {**self._facts, "part": self._num_parts}
        part = Part(self._directory / part_name(self._num_parts), facts)
        self._num_parts += 1
        return part
