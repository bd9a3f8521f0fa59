"""Runs backward passes again: which gradients, from what, and what that tells of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.placing import loaded, loaded_for
from dumpcmp.comparing.reruns import (
    IN_VMAP,
    Loading,
    Planner,
    Replaying,
    Rerunning,
    UnknownError,
    factor_of,
    ranks_apart,
)
from dumpcmp.comparing.taping import GradientPlan, Place, plan_gradient
from dumpcmp.comparing.term_rounding import as_terms_round, as_zeros_fit
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import ALIKE, APART
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Pair
from dumpcmp.nouns.value import dtype_named
from dumpcmp.shadows.rounded_products import Factor, Product

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor

    from dumpcmp.replay.backward import BackwardRerun
    from dumpcmp.replay.running import Rerun
    from dumpcmp.replay.unrounded import Leeway


@dataclass(frozen=True, slots=True)
class Computing:
    """A forward value that the target does not store, from values that it does."""

    plan: Rerunning
    slot: str  # of the last call
    dtype: str  # that golden has it in

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return self.plan.nbytes

    @property
    def unit(self) -> float:
        """How far what a kernel took may be from it."""
        return max((each.unit for each in self.plan.given.values()), default=0.0)

    @property
    def is_by_rank(self) -> bool:
        """Whether each rank has a value of its own."""
        return any(each.is_by_rank for each in self.plan.given.values())

    @property
    def is_joined(self) -> bool:
        """Whether it was held against golden's by another order."""
        return any(each.is_joined for each in self.plan.given.values())

    def on_cpu(self) -> Computing:
        """The same to be run on the CPU."""
        return replace(self, plan=self.plan.on_cpu())

    def of_rank(self, rank: int) -> Computing:
        """The same as one rank ran it."""
        return replace(self, plan=self.plan.of_rank(rank))


@dataclass(frozen=True, slots=True)
class Sloping:
    """A gradient to compute again, from what both sides have."""

    plan: GradientPlan
    given: Mapping[Place, Loading | Computing]
    grads: Mapping[Place, Loading]
    gave: Mapping[Key, Loading]  # by golden's names: the gradient
    apart: float = 0.0  # the largest rel_l2 between the sides of what it is computed from
    device: str = "cpu"
    is_touched: bool = False  # by another choice, so that nobody asks whether it cancels
    recorded: Mapping[Place, Loading] = field(default_factory=dict)  # outputs, read if need be
    levels: tuple[str, ...] = ()  # those that the target may have rounded numbers to
    is_itself: bool = False  # it is golden's own

    @property
    def calls(self) -> tuple[Call, ...]:
        """What is differentiated."""
        return self.plan.calls

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        readings = (*self.given.values(), *self.grads.values(), *self.gave.values())
        return sum(reading.nbytes for reading in readings)

    def values(self) -> Iterator[tuple[bool, Place, Loading | Computing]]:
        """What it is computed from: what was given forward, and what was backward."""
        yield from ((True, place, each) for place, each in self.given.items())
        yield from ((False, place, each) for place, each in self.grads.items())

    def on_cpu(self) -> Sloping:
        """The same to be run on the CPU."""
        given = {place: each.on_cpu() for place, each in self.given.items()}
        grads = {place: each.on_cpu() for place, each in self.grads.items()}
        gave = {key: each.on_cpu() for key, each in self.gave.items()}
        recorded = {place: each.on_cpu() for place, each in self.recorded.items()}
        return replace(self, given=given, grads=grads, gave=gave, recorded=recorded)

    @property
    def ranks(self) -> list[int]:
        """The ranks of which each ran it for itself, on values of its own."""
        return ranks_apart(self.gave.values(), (*self.given.values(), *self.grads.values()))

    def of_rank(self, rank: int) -> Sloping:
        """The same as one rank ran it."""
        given = {place: each.of_rank(rank) for place, each in self.given.items()}
        grads = {place: each.of_rank(rank) for place, each in self.grads.items()}
        gave = {key: each.of_rank(rank) for key, each in self.gave.items()}
        recorded = {place: each.of_rank(rank) for place, each in self.recorded.items()}
        return replace(self, given=given, grads=grads, gave=gave, recorded=recorded)


def plan_slopes(
    planner: Planner, gradients: Iterable[Pair] | None = None
) -> tuple[list[Sloping], dict[Pair, Replay]]:
    """The gradients that are to be computed again, and why others cannot be.

    These are `gradients`, or all in which anything differs.
    """
    plans: list[Sloping] = []
    found: dict[Pair, Replay] = {}
    for pair in _gradients(planner) if gradients is None else gradients:
        try:
            plans.append(_sloping(planner, pair))
        except UnknownError as error:
            found[pair] = Replay(unknown=str(error))
    return plans, found


def _gradients(planner: Planner) -> Iterator[Pair]:
    """The gradients that both sides have, each where it appears first, where anything differs."""
    flow = planner.flow
    for pair in flow.pairs:
        if not pair.both or pair.repeats or not pair.key.slot.is_gradient:
            continue
        near = (pair, *flow.sources[pair])
        if planner.how is Replaying.ALL or not all(map(planner.is_equal, near)):
            yield pair


def _sloping(planner: Planner, pair: Pair) -> Sloping:
    flow = planner.flow
    assert pair.golden
    plan = plan_gradient(flow.tape, pair.golden, lambda key: _is_shared(flow, key))
    if plan.unknown:
        raise UnknownError(plan.unknown)
    if any(flow.golden.is_batched(call.site) for call in plan.calls):
        raise UnknownError(IN_VMAP)
    plan = replace(plan, calls=tuple(planner.own.get(call.site, call) for call in plan.calls))
    given = {place: _value(planner, key) for place, key in plan.given.items()}
    grads = {place: planner.read(flow.ours[key]) for place, key in plan.grads.items()}
    gave = {pair.golden: planner.read(pair)}
    device = gave[pair.golden].task.target.first.device.partition(":")[0]
    known = [flow.ours[key] for key in plan.sources if key in flow.ours]
    apart = max((planner.distance(source) for source in known), default=0.0)
    recorded = dict(_recorded(planner, plan))
    is_touched, levels = pair in planner.touched, planner.levels
    return Sloping(
        plan, given, grads, gave, apart, device, is_touched, recorded, levels, planner.is_itself
    )


def _recorded(planner: Planner, plan: GradientPlan) -> Iterator[tuple[Place, Loading]]:
    """The outputs of the plan's calls that both sides stored whole."""
    for place, key in plan.gave.items():
        if _is_shared(planner.flow, key):
            with contextlib.suppress(UnknownError):  # it is computed from the inputs then
                yield place, planner.read(planner.flow.ours[key])


def _is_shared(flow: DataFlow, gradient: Key) -> bool:
    """Whether both sides have a gradient, and the target as its own kernels computed it."""
    pair = flow.ours.get(gradient)
    return bool(pair and pair.target and not flow.target.record(pair.target).is_twin)


def _value(planner: Planner, key: Key) -> Loading | Computing:
    found = planner.value(key)
    if isinstance(found, Loading):
        return found
    return Computing(*found, planner.flow.golden.record(key).dtype)


def slope_task(task: Sloping) -> dict[Key, Replay]:
    """Carry out one plan. Whatever is wrong with it is told: the others go on."""
    try:
        mine = _again(task, is_target=True)
        return {key: _held(task, mine, reading) for key, reading in task.gave.items()}
    except DumpcmpError as error:
        return dict.fromkeys(task.gave, Replay(unknown=error.message))


def _held(task: Sloping, mine: BackwardRerun, reading: Loading) -> Replay:
    """What the target's gradient differs in from its replay.

    A program may give other gradients than those of its forward pass, and golden shows whether it
    does: then nothing can be said.
    """
    from dumpcmp.replay.backward import GRADIENT
    from dumpcmp.replay.holding import hold

    got, golden = _tensor(reading, is_target=True), _tensor(reading, is_target=False)
    inherited = _distance(mine.gradient, golden)
    is_summed = not reading.in_terms and any(one.in_terms for one in task.grads.values())
    plain = mine.plain(is_summed=is_summed)
    replay = _as_it_rounds(task, hold(plain, GRADIENT, got), reading)
    if not replay.is_known:
        return replay
    replay = as_zeros_fit(replay, mine.gradient, got, reading)
    if not wrong(replay):
        is_near = inherited <= APART or task.is_touched
        condition = 1.0 if is_near else mine.condition()
        replay = replay._replace(condition=max(replay.condition, condition))
    for is_moved in (False, True):
        if wrong(replay):
            again = hold(mine.rated(is_moved=is_moved), GRADIENT, got)
            replay = _as_it_rounds(task, again, reading)
    if wrong(replay) and (exact := _as_recorded(task, is_target=True)):
        mine = exact
        replay = _as_it_rounds(task, hold(mine.rated(), GRADIENT, got), reading)
    if wrong(replay) and (alone := _alone(task, mine)) is not None:
        part = _as_it_rounds(task, hold(alone, GRADIENT, got), reading)
        replay = replay if wrong(part) else part
    if wrong(replay):
        replay = _in_kernel(task, mine, reading, replay)
    if wrong(replay) and task.levels:
        replay = _in_levels(task, mine, got, replay)
    if wrong(replay):
        if not task.is_itself and _is_other_in_golden(task, golden):
            return Replay(unknown="golden's gradient is not that of the recorded calls either")
        replay = replay._replace(blamed=_culprits(task, mine, got))
    grown = inherited / task.apart if task.apart else math.nan
    return replay._replace(inherited=inherited, amplification=grown)


def _is_other_in_golden(task: Sloping, golden: Tensor) -> bool:
    """Whether golden's gradient is not that of the recorded calls, as far as anybody can tell."""
    from dumpcmp.replay.backward import GRADIENT
    from dumpcmp.replay.holding import hold

    other = _as_recorded(task, is_target=False) or _again(task, is_target=False)
    theirs = hold(other.rated(), GRADIENT, golden)
    return not theirs.is_known or bool(wrong(theirs))


def _in_kernel(task: Sloping, mine: BackwardRerun, reading: Loading, before: Replay) -> Replay:
    """What is wrong with a gradient by kernels that round otherwise than torch's on a CPU.

    For fused ones values need not be rounded; and sums inside of norms may be, in float32.
    """
    from dumpcmp.replay.backward import GRADIENT

    room = _unrounded(task, mine)
    if mine.has_norms:
        room += _in_norms(mine)
    if not room.whole and not bool(room.elements.any()):
        return before
    rated, got = mine.rated(), _tensor(reading, is_target=True)
    return _as_it_rounds(task, room.held(rated, GRADIENT, got, before), reading)


def _in_norms(mine: BackwardRerun) -> Leeway:
    """How far a gradient may be off because of what the sums of norms on its way round."""
    import torch

    from dumpcmp.replay.unrounded import DRAWS, leeway_of

    draw = torch.Generator().manual_seed(0)
    return leeway_of((mine.with_rounded_sums(draw) for _ in range(DRAWS)), mine.gradient)


def _unrounded(task: Sloping, mine: BackwardRerun) -> Leeway:
    """The same because of what was rounded when it was stored, and not yet when it was taken."""
    from dumpcmp.replay.unrounded import leeway

    units = {(is_given, at): each.unit for is_given, at, each in task.values() if each.unit}
    return leeway(partial(_moved, task), _all_given(task), units, mine.gradient)


def _in_levels(task: Sloping, mine: BackwardRerun, got: Tensor, before: Replay) -> Replay:
    """What is wrong with a gradient whose factors may have been rounded to declared levels."""
    product = Product(partial(_moved, task), _all_given(task), mine.gradient, got)
    factors = {
        (is_given, at): factor_of(each) if is_given else Factor.GRADIENT
        for is_given, at, each in task.values()
    }
    return product.in_levels(factors, task.levels, before)


def _all_given(task: Sloping) -> dict[tuple[bool, Place], Tensor]:
    """What the target's gradient is computed from: given forward, or backward."""
    return {(is_given, at): _tensor(each, True) for is_given, at, each in task.values()}


def _moved(task: Sloping, moved: Mapping[tuple[bool, Place], Tensor]) -> Tensor:
    """The gradient, computed from other numbers."""
    known = {at: _taken(task, at, one, is_target=True) for at, one in _told(task).items()}
    forward, backward = (
        {at: one for (is_given, at), one in moved.items() if is_given is side}
        for side in (True, False)
    )
    return _differentiated(task, forward, backward, known).gradient


def _alone(task: Sloping, mine: BackwardRerun) -> Rerun | None:
    """What the op of a gradient gives by itself, where golden adds up what several ops give.

    A stage of a pipeline has the tensor that it received for itself: what others make of it is
    added up where it was sent from.
    """
    from dumpcmp.replay.backward import GRADIENT

    key, reading = next(iter(task.gave.items()))
    calls = task.plan.calls
    own = [part for (number, _), part in mine.parts.items() if calls[number].site == key.site]
    if not reading.task.is_partitioned or not 0 < len(own) < len(mine.parts):
        return None
    return replace(mine.rated(), outputs={GRADIENT: sum(own[1:], own[0])})


def _as_it_rounds(task: Sloping, replay: Replay, reading: Loading) -> Replay:
    """`replay`, rated by the terms that ranks hold, and by the dtype that it was computed in.

    Gradients of weights that were cast to a short dtype may be added up, and kept, in a wide one.
    """
    given = [one for one in task.given.values() if isinstance(one, Loading)]
    leaves = [one for place in task.plan.leaves if isinstance(one := task.given[place], Loading)]
    eps = [dtype_named(one.task.target.first.dtype).eps for one in leaves]
    replay = replay if replay.is_exact else replay._replace(eps=max(replay.eps, *eps, 0.0))
    return as_terms_round(replay, (*given, *task.grads.values(), reading))


def _culprits(task: Sloping, mine: BackwardRerun, got: Tensor) -> tuple[str, ...]:
    """The calls whose parts of the gradient may be wrong, the likeliest first.

    It is one alone where the error resembles its part, and no other's as much.
    """
    import torch

    error = got.to(mine.gradient) - mine.gradient
    error = torch.where(torch.isfinite(error), error, 0.0)
    whole = float(error.norm())
    likeness: dict[str, float] = {}
    for (number, _), part in mine.parts.items():
        site, norm = str(task.plan.calls[number].site), whole * float(part.norm())
        alike = float((part.conj() * error).sum().abs()) / norm if norm else 0.0
        likeness[site] = max(likeness.get(site, 0.0), alike)
    ranked = sorted(likeness, key=lambda site: -likeness[site])
    is_plain = len(ranked) == 1 or likeness[ranked[0]] > max(ALIKE, 2 * likeness[ranked[1]])
    return tuple(ranked[:1] if is_plain else ranked)


def _as_recorded(task: Sloping, is_target: bool) -> BackwardRerun | None:
    """The backward pass by outputs as the run rounded them, if any call is differentiated so."""
    used = _told(task)
    return _again(task, is_target, used) if used else None


def _told(task: Sloping) -> dict[Place, Loading]:
    """The recorded outputs that calls are differentiated by."""
    from dumpcmp.replay.recorded import told_by

    told = [told_by(call.site.op.function) for call in task.plan.calls]
    return {at: one for at, one in task.recorded.items() if at[1] == told[at[0]]}


def _again(
    task: Sloping, is_target: bool, recorded: Mapping[Place, Loading] | None = None
) -> BackwardRerun:
    given, grads, known = (
        {place: _taken(task, place, reading, is_target) for place, reading in readings.items()}
        for readings in (task.given, task.grads, recorded or {})
    )
    return _differentiated(task, given, grads, known)


def _differentiated(
    task: Sloping,
    given: Mapping[Place, Tensor],
    grads: Mapping[Place, Tensor],
    known: Mapping[Place, Tensor] | None = None,
) -> BackwardRerun:
    import torch

    from dumpcmp.replay.backward import BackwardRerun, Slope
    from dumpcmp.replay.chains import Chain

    plan = task.plan
    dtypes = {place: getattr(torch, name) for place, name in plan.dtypes.items()}
    rounded = {
        place: getattr(torch, reading.dtype)
        for place, reading in task.given.items()
        if isinstance(reading, Computing)
    }
    slope = Slope(
        Chain(plan.calls, plan.wires, dtypes), given, plan.leaves, grads, rounded, known or {}
    )
    return BackwardRerun(slope, device=task.device)


def _computed(value: Computing, is_target: bool) -> Tensor:
    import torch

    from dumpcmp.replay.chains import Chain, rerun_region

    plan = value.plan
    dtypes = {place: getattr(torch, name) for place, name in plan.dtypes.items()}
    given = {place: _tensor(reading, is_target) for place, reading in plan.given.items()}
    wanted = {value.slot: (len(plan.calls) - 1, value.slot)}
    region = Chain(plan.calls, plan.wires, dtypes)
    return rerun_region(region, given, wanted, device=plan.device).outputs[value.slot]


def _taken(task: Sloping, place: Place, reading: Loading | Computing, is_target: bool) -> Tensor:
    """What a call of `task` took, forward or backward."""
    if isinstance(reading, Computing):
        return _computed(reading, is_target)
    return loaded_for(task.calls[place[0]], reading, is_target)


def _tensor(reading: Loading | Computing, is_target: bool) -> Tensor:
    if isinstance(reading, Computing):
        return _computed(reading, is_target)
    return loaded(reading, is_target)


def _distance(again: Tensor, golden: Tensor) -> float:
    if golden.shape != again.shape:
        return math.nan
    golden = golden.to(again)
    norm = float(golden.norm())
    return float((again - golden).norm()) / norm if norm else math.nan
