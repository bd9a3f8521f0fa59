"""The steps that are being written: which part each is at, and where its values will lie."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dumpcmp.archive.paths import RankDirectory, part_name, parts_in
from dumpcmp.archive.schema import MAX_LINKS, SCHEMA_VERSION
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Part
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call

MOST_OPEN = 8  # steps; an older one is sealed, and a late value of it begins a new part


@dataclass(slots=True, eq=False)
class PartPlan:
    """A part as the producer sees it: what it will hold once the ring is written."""

    part: Part
    nonce: int
    most_nbytes: int
    nbytes: int = 0
    num_rows: int = 0
    num_calls: int = 0
    full: bool = False  # the next value belongs into a new part
    forms: dict[Template, int] = field(default_factory=dict)

    def count_call(self) -> int:
        """Count one more call; gives its number."""
        self.num_calls += 1
        self.full = self.full or self.num_calls >= MAX_LINKS // 2
        return self.num_calls - 1


Holding = tuple[PartPlan, int, Key]  # the part and row that hold a value, and its first Key


@dataclass(slots=True, eq=False)
class CallPlan:
    """A call of a step: its number in the part that is being written, and where its slots lie."""

    call: Call
    plan: PartPlan | None = None
    number: int = 0
    slots: dict[str, Holding] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StepPlan:
    """A step that is being written."""

    model: str
    number: int
    directory: Path
    plan: PartPlan
    calls: dict[tuple[str, int], CallPlan] = field(default_factory=dict)

    def holding_of(self, key: Key) -> Holding | None:
        """Where the value `key` of this step lies, if it has been received."""
        if (key.model, key.step) != (self.model, self.number):
            return None
        call = self.calls.get((key.op, key.call))
        return call.slots.get(key.slot) if call else None


class Steps:
    """The open steps, the latest last; `seal` is told of each part that is finished."""

    def __init__(
        self, directory: RankDirectory, part_nbytes: int, seal: Callable[[Part], None]
    ) -> None:
        self._directory = directory
        self._part_nbytes = part_nbytes
        self._seal = seal
        self._open: OrderedDict[tuple[str, int], StepPlan] = OrderedDict()

    def get(self, model: str, number: int) -> StepPlan:
        step = self._open.get((model, number))
        if step is None:
            if len(self._open) >= MOST_OPEN:
                self.end(*next(iter(self._open)))
            directory = self._directory.step_directory(model, number)
            plan = self._new_plan(directory, model, number)
            step = self._open[model, number] = StepPlan(model, number, directory, plan)
        self._open.move_to_end((model, number))
        return step

    def turn(self, step: StepPlan) -> PartPlan:
        """The part that `step` writes to now: a new one where the last is full."""
        if step.plan.full:
            self._seal(step.plan.part)
            step.plan = self._new_plan(step.directory, step.model, step.number)
        return step.plan

    def end(self, model: str, number: int) -> None:
        """Seal the step's part; a value that comes late begins a new one."""
        if step := self._open.pop((model, number), None):
            self._seal(step.plan.part)

    def _new_plan(self, directory: Path, model: str, step: int) -> PartPlan:
        number = max(parts_in(directory), default=-1) + 1
        facts = {
            "schema": SCHEMA_VERSION,
            "model": model,
            "step": step,
            "rank": self._directory.rank,
            "world_size": self._directory.world_size,
            "part": number,
        }
        part = Part(directory / part_name(number), facts)
        return PartPlan(part, part.nonce, self._part_nbytes)
