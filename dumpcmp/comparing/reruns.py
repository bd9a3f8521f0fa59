"""Decides from metadata which of golden's calls are to be run again, and on what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.kept_rows import incomparable, places_of
from dumpcmp.comparing.laying import Job, Task, is_partial
from dumpcmp.comparing.quantised import are_codes
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.spare_inputs import needs
from dumpcmp.judge.tolerances import IN_KERNEL
from dumpcmp.nouns.arithmetic import puts
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import UNMEASURED, USUAL, Measured, Pair, PairedBy, Unwritten
from dumpcmp.nouns.value import dtype_named
from dumpcmp.shadows.rounded_products import Factor

IN_VMAP = "golden's op ran inside of torch.func.vmap, on one example of a batch at a time"
MOST_CALLS = 64  # of a region: what lies farther apart is not held against each other

_Place = tuple[int, str]  # the how-manieth call of a plan, and a slot of it


class Replaying(StrEnum):
    """Which ops are run again."""

    AUTO = "auto"  # those that were given or gave out anything that is not the same to the bit
    ALL = "all"
    OFF = "off"


@quickly_made
@dataclass(frozen=True, slots=True)
class Loading:
    """One side of a pair, for a worker to read."""

    task: Task
    is_target: bool = True
    in_terms: bool = False  # the ranks hold terms of it
    is_by_rank: bool = False  # each rank has a value of its own
    is_joined: bool = False  # and it was held against golden's by another order
    unit: float = 0.0  # how far what a kernel took may be from it, which rounded it when it stored

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return self.task.target.nbytes

    def on_cpu(self) -> Loading:
        """The same to be read to the CPU."""
        return replace(self, task=replace(self.task, on="cpu"))

    def of_rank(self, rank: int) -> Loading:
        """The same of what one rank has."""
        return Loading(self.task.of_rank(rank), self.is_target, unit=self.unit)


class _Apart(Protocol):
    @property
    def is_by_rank(self) -> bool: ...

    @property
    def is_joined(self) -> bool: ...


@quickly_made
@dataclass(frozen=True, slots=True)
class Rerunning:
    """Golden's calls to run again, on what the target has at their edge; the last gives out `gave`.

    Without a call it is one value, `given` where it was computed and `gave` where it was taken.
    """

    calls: tuple[Call, ...]
    given: Mapping[_Place, Loading]
    gave: Mapping[Key, Loading]  # by golden's names
    wires: Mapping[_Place, _Place] = field(default_factory=dict)  # inputs that earlier calls give
    dtypes: Mapping[_Place, str] = field(default_factory=dict)  # of what golden's calls gave out
    apart: float = 0.0  # the largest rel_l2 between the sides of what is given
    device: str = "cpu"  # its type: where the target ran them
    is_alone: bool = False  # it is one call, and the target ran it as such, on what it has stored
    levels: tuple[str, ...] = ()  # those that the target may have rounded numbers to
    taken_as: str = ""  # the slot of the last call, where `gave` is where its output was taken

    def slot_of(self, key: Key) -> str:
        """The slot of the last call that gives `key`, one of what is given out."""
        return self.taken_as or str(key.slot)

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(one.nbytes for one in (*self.given.values(), *self.gave.values()))

    def on_cpu(self) -> Rerunning:
        """The same to be run on the CPU."""
        given = {place: each.on_cpu() for place, each in self.given.items()}
        return replace(self, given=given, gave={key: e.on_cpu() for key, e in self.gave.items()})

    @property
    def ranks(self) -> list[int]:
        """The ranks of which each ran it for itself, on values of its own."""
        return ranks_apart(self.gave.values(), self.given.values())

    def of_rank(self, rank: int) -> Rerunning:
        """The same as one rank ran it."""
        given = {place: each.of_rank(rank) for place, each in self.given.items()}
        gave = {key: each.of_rank(rank) for key, each in self.gave.items()}
        return replace(self, given=given, gave=gave)


def ranks_apart(gave: Iterable[Loading], given: Iterable[_Apart]) -> list[int]:
    """The ranks that have what an op gave, where each has values of its own.

    What the ranks make together of such values cannot be run again.
    """
    gave = list(gave)
    apart = [each for each in (*gave, *given) if each.is_by_rank]
    if not apart:
        return []
    if len({each.is_joined for each in apart}) > 1:  # to whom they belong is then not known
        raise AlignError("the ranks have some of its values for themselves, and parts of others")
    if not all(each.is_by_rank for each in gave):
        raise AlignError("the ranks made it of values that each has for itself")
    return sorted({record.rank for each in gave for record in each.task.target.records})


class UnknownError(Exception):
    """Why a call cannot be run again."""


@dataclass(frozen=True)
class Planner:
    """What is known of a comparison before anything is run again."""

    flow: DataFlow
    work: Mapping[Pair, Job]
    measured: Mapping[Pair, Measured]
    how: Replaying
    own: Mapping[Site, Call] = field(default_factory=dict)  # calls with numbers that it chose
    touched: Collection[Pair] = ()  # by other choices: they differ for that alone
    levels: tuple[str, ...] = ()  # that are declared: what the target may have rounded numbers to
    golden: Side | None = None  # where weights are that the target has in a form of its own
    is_itself: bool = False  # golden's ops are run on golden's own values
    _readings: dict[tuple[Pair, bool], Loading] = field(default_factory=dict, init=False)

    def plans(self) -> tuple[list[Rerunning], dict[Pair, Replay]]:
        """All that is to be run again, and what is known without."""
        plans: list[Rerunning] = []
        found: dict[Pair, Replay] = {}
        for site, outputs in self._sites():
            try:
                plans.append(self.plan_call(site, outputs))
            except UnknownError as error:
                found |= {pair: Replay(unknown=str(error)) for pair in outputs}
        for pair, source in self._rewired():
            try:
                plans.append(self._taken(pair, source))
            except UnknownError as error:
                found[pair] = Replay(unknown=str(error))
        for pair, made in self._left_out():
            try:
                plans.append(self._made_and_taken(pair, made))
            except UnknownError as error:
                found[pair] = Replay(unknown=str(error))
        return plans, found

    def _sites(self) -> Iterator[tuple[Site, list[Pair]]]:
        """Golden's calls of functions whose outputs both sides have, where anything differs."""
        for site, pairs in self.flow.calls.items():
            outputs = [] if site.op.is_module else self.outputs(pairs)
            if not outputs:
                continue
            forward = [pair for pair in pairs if not pair.key.slot.is_gradient]
            if self.how is Replaying.ALL or not all(map(self.is_equal, forward)):
                yield site, outputs

    def outputs(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The outputs of a call that both sides have, each beside its own partner."""
        found = [pair for pair in pairs if pair.key.slot.is_output and pair.both]
        return [p for p in found if p.golden is None or self.flow.ours[p.golden] is p]

    def plan_call(self, site: Site, outputs: Sequence[Pair]) -> Rerunning:
        """The plan for the call at `site`: alone, or with those before it that the target lacks."""
        region = _Region(self, takes_rows=True)
        region.add(site)
        gave = {pair.golden: self.read(pair, True) for pair in outputs if pair.golden}
        if why := _unfit(region, gave):
            raise UnknownError(why)
        device = next(iter(gave.values())).task.target.first.device.partition(":")[0]
        return Rerunning(
            tuple(region.calls),
            region.given,
            gave,
            region.wires,
            region.dtypes,
            region.apart,
            device,
            len(region.calls) == 1 and all(map(self._is_alone, outputs)),
            self.levels,
        )

    def _is_alone(self, pair: Pair) -> bool:
        """Whether the target calls the same function, in no kernel that may keep more digits."""
        theirs = self.flow.target.call(pair.target) if pair.target else None
        ours = self.flow.golden.call(pair.golden) if pair.golden else None
        if theirs is None or ours is None or theirs.is_compiled:
            return False
        return theirs.op.function == ours.op.function and self.flow.target.num_ranks == 1

    def _rewired(self) -> Iterator[tuple[Pair, Pair]]:
        """Inputs that differ and are not one value on both sides, with what golden takes there."""
        for pair in self.flow.pairs:
            if not pair.both or not pair.key.slot.is_input or self.is_equal(pair):
                continue
            if pair.repeats and not self.levels:
                continue
            ours, theirs = self.flow.taken_from(pair)
            is_one = ours is not None and self.flow.are_one(ours, theirs)
            if is_one and self.levels:  # what was rounded on the way may stand beside golden's, too
                is_one = theirs is ours
            if ours is not None and ours.both and not is_one:
                yield pair, ours

    def _taken(self, pair: Pair, source: Pair) -> Rerunning:
        """The plan to hold what the target took against its own partner of what golden took."""
        assert pair.golden
        taken, given = (replace(self.read(one), is_by_rank=False) for one in (pair, source))
        return Rerunning((), {(0, ""): given}, {pair.golden: taken}, levels=self.levels)

    def _left_out(self) -> Iterator[tuple[Pair, Key]]:
        """Inputs that another choice touched, where golden takes what golden alone computes.

        Rows that are touched have no numbers to compare, and ops after them are right for what they
        took, whatever was left out before them.
        """
        for pair in self.touched:
            if not pair.both or not pair.key.slot.is_input or pair.repeats:
                continue
            made = self.flow.golden.links.get(pair.golden) if pair.golden else None
            ours = self.flow.ours.get(made) if made else None
            if made and ours and not ours.both and made.slot.is_output and not made.op.is_module:
                yield pair, made

    def _made_and_taken(self, pair: Pair, made: Key) -> Rerunning:
        """The plan to hold what the target took against golden's ops on what the target has."""
        assert pair.golden
        region = _Region(self)
        region.add(made.site)
        taken = self.read(pair)
        return Rerunning(
            tuple(region.calls),
            region.given,
            {pair.golden: taken},
            region.wires,
            region.dtypes,
            region.apart,
            taken.task.target.first.device.partition(":")[0],
            levels=self.levels,
            taken_as=str(made.slot),
        )

    def is_equal(self, pair: Pair) -> bool:
        """Whether both sides of a pair are the same to the bit."""
        metrics = self.measured_of(pair).metrics
        return metrics is not None and metrics.equal

    def distance(self, pair: Pair) -> float:
        """The rel_l2 between the sides of a pair, where it is known."""
        metrics = self.measured_of(pair).metrics
        return metrics.rel_l2 if metrics is not None and metrics.rel_l2 > 0 else 0.0

    def measured_of(self, pair: Pair) -> Measured:
        """What measuring told of a pair, or of its first appearance."""
        first = pair if pair in self.measured else pair.repeats
        return self.measured.get(first, UNMEASURED) if first else UNMEASURED

    def value(self, key: Key) -> Loading | tuple[Rerunning, str]:
        """What the target has of golden's forward value `key`; else how to compute it, as a slot.

        It is computed by golden's calls from what the target has.
        """
        region = _Region(self)
        source = region.source(key)
        if isinstance(source, Loading):
            return source
        calls = tuple(region.calls)
        plan = Rerunning(calls, region.given, {}, region.wires, region.dtypes, region.apart)
        return plan, source[1]

    def read(self, pair: Pair, takes_rows: bool = False) -> Loading:
        """How to read what the target has of `pair`: all of it, or as many rows as are kept."""
        found = self._readings.get((pair, takes_rows))
        if found is None:
            found = self._readings[pair, takes_rows] = self._reading(pair, takes_rows)
        return found

    def _reading(self, pair: Pair, takes_rows: bool) -> Loading:
        task = self.work.get(pair) or self.work.get(pair.repeats or pair)
        slot = pair.key.slot
        if not isinstance(task, Task):
            raise UnknownError(f"{slot} is moved by a collective")
        if task.target.problem:
            raise UnknownError(f"{slot} is not stored: {task.target.problem}")
        if task.golden_part:
            raise UnknownError(f"the target has {slot} in several values")
        for shares in (task.target, task.golden):
            if shares.is_summarised:
                are_rows = takes_rows and task.is_sampled and not incomparable(task)
                if not are_rows:
                    raise UnknownError(shares.said_kept)
        laid = self.measured_of(pair).laid
        in_laps, unit = task.golden.is_in_laps, self._unit(pair)
        if laid is None:
            return Loading(task, is_by_rank=in_laps, unit=unit)
        apart = in_laps or laid.is_by_rank
        return Loading(task, True, is_partial(laid), apart, in_laps and laid.is_joined, unit)

    def own_weight(self, key: Key) -> Loading | None:
        """Golden's weight `key`, in place of one that the target holds quantised and out of sight.

        None of what is no weight, of what the target takes as well, and without declared levels.
        """
        if not self.levels or self.golden is None or not self.flow.golden.first(key).slot.is_weight:
            return None
        pair = self.flow.ours.get(key)
        if pair is not None and self._is_taken(pair) and not self.is_coded(pair):
            return None
        shares = self.golden.shares(key)
        device = next((job.on for job in self.work.values() if isinstance(job, Task)), "cpu")
        return Loading(Task(shares, shares, USUAL, on=device), is_target=False)

    def _is_taken(self, pair: Pair) -> bool:
        """Whether the target's call takes the value; one elsewhere may be a weight by its bytes."""
        if pair.target is None:
            return False
        is_elsewhere = pair.by is PairedBy.VALUE
        return not (is_elsewhere and self.flow.target.first(pair.target).slot.is_weight)

    def is_coded(self, pair: Pair) -> bool:
        """Whether the target has the codes of a weight where golden has its numbers."""
        return bool(self.levels) and are_codes(pair, self.flow.golden, self.flow.target)

    def _unit(self, pair: Pair) -> float:
        """How far a value may be from what a kernel of the target took in its place.

        It was rounded on its way there, or not: to its own dtype, or earlier to a shorter one.
        """
        if pair.target is None:
            return 0.0
        target = self.flow.target
        first = target.first(pair.target)  # which a selection may have left out
        call = target.call(first) if first.slot.is_output or first.slot.is_gradient else None
        is_fused = call is not None and len(call.origins) > 1
        is_twin = any(
            target.record(key).is_twin for key in (pair.target, first) if key in target.values
        )
        return self._coarsest if is_twin or is_fused else 0.0

    @cached_property
    def _coarsest(self) -> float:
        """The rounding of the shortest dtype that compiled code gives out, and of its float32."""
        target = self.flow.target
        calls = [site for site, call in target.calls.items() if call.is_compiled]
        keys = [key for site in calls for key in target.sites.get(site, ())]
        dtypes = {target.record(key).dtype for key in keys if not key.slot.is_weight}
        return max((dtype_named(name).eps / 2 for name in dtypes), default=0.0) + IN_KERNEL


def _unfit(region: _Region, gave: Mapping[Key, Loading]) -> str:
    """Why the calls of `region` cannot be run on the rows that are kept; empty where they can."""
    if not any(one.task.is_sampled for one in (*region.given.values(), *gave.values())):
        return ""
    readings = {str(slot): reading for (_, slot), reading in region.given.items()}
    readings |= {str(key.slot): reading for key, reading in gave.items()}
    sampled = {slot: one.task for slot, one in readings.items() if one.task.is_sampled}
    from dumpcmp.replay.rowwise import unfit_for_rows  # where there is something to run

    kept = [places_of(task) for task in sampled.values()]
    if len(region.calls) > 1 or any(not np.array_equal(kept[0], other) for other in kept):
        return "only some rows are kept, and not the same of all that it takes and gives"
    if any(one.task.is_partitioned for one in readings.values()):
        return "only some rows are kept of what lies over ranks"
    whole = {slot: one for slot, one in readings.items() if slot not in sampled}
    if any(slot.startswith("output.") for slot in whole):
        return "only some rows are kept of what it was given"
    shapes = {slot: task.target.first.shape for slot, task in sampled.items()}
    return unfit_for_rows(
        region.calls[0], shapes, {slot: one.task.target.first.shape for slot, one in whole.items()}
    )


@dataclass
class _Region:
    """Calls to run one after the other, while they are put together from the last one back."""

    planner: Planner
    takes_rows: bool = False
    calls: list[Call] = field(default_factory=list)
    given: dict[_Place, Loading] = field(default_factory=dict)
    wires: dict[_Place, _Place] = field(default_factory=dict)
    dtypes: dict[_Place, str] = field(default_factory=dict)
    apart: float = 0.0
    _numbers: dict[Site, int] = field(default_factory=dict)
    _num_begun: int = 0  # calls that wait for those before them

    def add(self, site: Site) -> int:
        """Add the call at `site` after all that it needs; its number."""
        if site in self._numbers:
            return self._numbers[site]
        flow = self.planner.flow
        call = self.planner.own.get(site) or flow.golden.calls.get(site)
        if call is None or not call.target or site.op.is_module:
            raise UnknownError("golden's call was not recorded")
        if flow.golden.is_batched(site):
            raise UnknownError(IN_VMAP)
        if len(self.calls) + self._num_begun >= MOST_CALLS:
            raise UnknownError(f"more than {MOST_CALLS} ops lie between values of both sides")
        slots = [k for k in flow.golden.sites[site] if k.slot.is_input and needs(call, k)]
        self._num_begun += 1
        found = {key: self.source(key) for key in slots}
        self._num_begun -= 1
        number = self._numbers[site] = len(self.calls)
        self.calls.append(call)
        for key, source in found.items():
            if isinstance(source, Loading):
                self.given[number, str(key.slot)] = source
            else:
                self.wires[number, str(key.slot)] = source
        for key in flow.golden.sites[site]:
            if key.slot.is_output:
                self.dtypes[number, str(key.slot)] = flow.golden.record(key).dtype
        return number

    def _written_into(self, key: Key) -> Pair | None:
        """Of memory that nobody has written and that the call of `key` writes to: what it gave.

        Where it wrote is then known; what it left alone has no value that could be wrong.
        """
        pair = self.planner.flow.ours.get(key)
        if pair is None or pair.unwritten is not Unwritten.WHOLLY or not puts(key.op):
            return None
        result = self.planner.flow.ours.get(key.site.key("output.0"))
        return result if key.slot == "input.0" and result is not None and result.both else None

    def source(self, key: Key) -> Loading | _Place:
        """What the target has of golden's value `key`; else the call that gives it, run again."""
        result = self._written_into(key)
        if result is not None:
            return self.planner.read(result, self.takes_rows)
        flow = self.planner.flow
        first = flow.golden.first(key)
        if (weight := self.planner.own_weight(key)) is not None:
            return weight
        for name in (key, first):
            pair = flow.ours.get(name)
            if pair is not None and pair.both and not self.planner.is_coded(pair):
                self._note(pair)
                return self.planner.read(pair, self.takes_rows)
        if not first.slot.is_output:
            raise UnknownError(f"the target has no {key.slot} of it")
        return self.add(first.site), str(first.slot)

    def _note(self, pair: Pair) -> None:
        self.apart = max(self.apart, self.planner.distance(pair))


def factor_of(reading: object) -> Factor:
    """What a forward value is: golden's is read where the target's has a form of its own."""
    is_unseen = isinstance(reading, Loading) and not reading.is_target
    return Factor.UNSEEN if is_unseen else Factor.SEEN
