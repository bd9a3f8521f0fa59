"""What is being written, as the producer sees it: steps, their parts and their calls."""

from __future__ import annotations

from pathlib import Path

from dumpcmp.archive import schema
from dumpcmp.archive.paths import RankDirectory, part_name, parts_in
from dumpcmp.archive.schema import MAX_LINKS
from dumpcmp.archive.write.desk import CallPlace, Filling, StepPlace
from dumpcmp.archive.write.drain import Drain
from dumpcmp.archive.write.finishing import SEAL
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.pens import num_pens
from dumpcmp.archive.write.recurring import Recurring
from dumpcmp.archive.write.spares import Spares
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Where

LANES = 2  # for each thread: values differ in size, and one whose lane is busy would have to wait
LANE_NBYTES = 1 << 30  # parts must be allowed to grow so large for lanes, lest there be too many
MOST_STEPS = 8  # of a model; an older one is sealed, and a late value of it begins a new part
MOST_IN_ALL = 64  # of all models, each of which may be in the midst of one on a thread of its own


class PartPlan(Filling):
    """A part as the producer sees it: what it will hold once the ring is written."""

    __slots__ = ()

    part: Part
    forms: dict[Template, int]

    def __init__(self, part: Part, nonce: int, most_nbytes: int) -> None:
        self.part, self.nonce, self.most_nbytes = part, nonce, most_nbytes
        self.nbytes = self.num_rows = self.num_calls = 0
        self.full = False
        self.forms = {}

    def count_call(self) -> int:
        """Count one more call; gives its number."""
        self.num_calls += 1
        self.full = self.full or self.num_calls >= MAX_LINKS // 2
        return self.num_calls - 1


Holding = tuple[PartPlan, int, Where]  # the part and row of a value, and what it is called there


class CallPlan(CallPlace):
    """A call of a step: its number in the part that is being written, and where its slots lie."""

    __slots__ = ()

    plan: PartPlan | None
    slots: dict[str, Holding]
    earlier: dict[PartPlan, int] | None

    def __init__(self, call: Call) -> None:
        self.call, self.plan, self.number = call, None, 0
        self.slots, self.earlier = {}, None

    def move_to(self, plan: PartPlan, number: int) -> None:
        """Have what comes next in `plan`, where the call has this number."""
        if self.plan is not None:
            self.earlier = {**(self.earlier or {}), self.plan: self.number}
        self.plan, self.number = plan, number


class StepPlan(StepPlace):
    """A step that is being written; of several parts, `plan` is the one that comes next."""

    __slots__ = ()

    plan: PartPlan
    lanes: list[PartPlan]
    calls: dict[tuple[str, int], CallPlan]

    def __init__(self, model: str, number: int, plan: PartPlan) -> None:
        self.model, self.number, self.plan = model, number, plan
        self.lanes, self.calls = [plan], {}
        self.changes_lane = False

    def holding_of(self, key: Key) -> Holding | None:
        """Where the value `key` of this step lies, if it has been received."""
        if (key.model, key.step) != (self.model, self.number):
            return None
        call = self.calls.get((key.op, key.call))
        return call.slots.get(key.slot) if call else None


def _num_lanes(part_nbytes: int) -> int:
    """How many parts of a step take large values in turn, if a part may grow to `part_nbytes`."""
    pens = num_pens()
    return LANES * pens if pens > 1 and part_nbytes >= LANE_NBYTES else 1


class Steps:
    """The open steps, the latest last; `drain` seals each part that is finished.

    A file lets one thread write at a time. So large values of a step go into several parts in
    turn, twice as many as there are threads.
    """

    def __init__(
        self, directory: RankDirectory, part_nbytes: int, drain: Drain, *, shares: bool = True
    ) -> None:
        self._directory, self._part_nbytes, self._drain = directory, part_nbytes, drain
        self._shares = shares  # whether steps share what they have in common
        self._recurring: dict[str, Recurring] = {}  # by model
        self._num_lanes = _num_lanes(part_nbytes)
        self._open: dict[tuple[str, int], StepPlan] = {}
        self._spares = Spares(directory, self._new_part)

    def get(self, model: str, number: int) -> StepPlan:
        step = self._open.pop((model, number), None)
        if step is None:
            self._make_room(model)
            step = StepPlan(model, number, self._new_plan(model, number))
        self._open[model, number] = step
        return step

    def _make_room(self, model: str) -> None:
        """Seal the oldest step of `model`, or of all, where there are many."""
        own = [place for place in self._open if place[0] == model]
        if len(own) >= MOST_STEPS:
            self.end(*own[0])
        elif len(self._open) >= MOST_IN_ALL:
            self.end(*next(iter(self._open)))

    def next_plan(self, step: StepPlan) -> PartPlan:
        """The part for what comes next of `step`: the next of its lanes, and a new one if full."""
        lane = step.lanes.index(step.plan)
        if step.changes_lane:
            step.changes_lane = False
            lane = (lane + 1) % self._num_lanes
        if lane == len(step.lanes):
            step.lanes.append(self._new_plan(step.model, step.number))
        elif step.lanes[lane].full:
            self._seal(step.lanes[lane].part)
            step.lanes[lane] = self._new_plan(step.model, step.number)
        step.plan = step.lanes[lane]
        return step.plan

    def end(self, model: str, number: int) -> None:
        """Seal the step's parts; a value that comes late begins a new one."""
        if step := self._open.pop((model, number), None):
            for lane in step.lanes:
                self._seal(lane.part)
            if not any(other == model and later > number for other, later in self._open):
                self._spares.prepare(model, number)  # else what comes next is not known by this

    @property
    def shared(self) -> tuple[int, int]:
        """How many values lie in shared parts, and their bytes that were there already."""
        found = list(self._recurring.values())  # at once: another thread may look
        return sum(each.num_values for each in found), sum(each.nbytes for each in found)

    def leave(self) -> None:
        """No step will begin any more."""
        self._spares.clear()

    def _seal(self, part: Part) -> None:
        """Let `part` be sealed once all that was laid down for it is written."""
        self._drain.submit((SEAL, part, 0, 0))

    def _new_plan(self, model: str, step: int) -> PartPlan:
        part = self._spares.take(model, step)
        if part is None:
            directory = self._directory.step_directory(model, step)
            number = max(parts_in(directory), default=-1) + 1
            part = self._new_part(directory, model, step, number)
        return PartPlan(part, part.nonce, self._part_nbytes)

    def _new_part(self, directory: Path, model: str, step: int, number: int) -> Part:
        facts = {
            "schema": schema.SCHEMA_VERSION,
            "model": model,
            "step": step,
            "rank": self._directory.rank,
            "world_size": self._directory.world_size,
            "part": number,
        }
        part = Part(directory / part_name(number), facts)
        if self._shares:
            if model not in self._recurring:
                self._recurring[model] = Recurring(
                    directory.parent, facts, self._part_nbytes, self._num_lanes
                )
            part.recurring = self._recurring[model]
            part.recurring.begin_step(step)
        return part
