"""Carries out plans to run ops again, and holds what the target gave against what the ops do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dumpcmp.comparing.both_sides import side_of
from dumpcmp.comparing.placing import loaded, loaded_for
from dumpcmp.comparing.reruns import Loading, Rerunning, factor_of
from dumpcmp.comparing.slopes import Sloping, slope_task
from dumpcmp.comparing.taping import Place
from dumpcmp.comparing.term_rounding import as_terms_round, as_zeros_fit
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import Kind, dtype_named, to_torch, value_of
from dumpcmp.shadows.declared_levels import quantised
from dumpcmp.shadows.rounded_products import Product

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor

    from dumpcmp.replay.running import Rerun

_TOGETHER = 256  # plans whose values are held against their replays at once
_SMALL = 1 << 12  # elements of a value


def rerun_tasks(plans: Sequence[Rerunning | Sloping]) -> Iterator[dict[Key, Replay]]:
    """Carry out plans, in order. What small ones gave is held against their ops together."""
    for start in range(0, len(plans), _TOGETHER):
        begun = [_begun_or_done(plan) for plan in plans[start : start + _TOGETHER]]
        finished = _finished([one for one in begun if isinstance(one, _Begun)])
        for one in begun:
            yield next(finished) if isinstance(one, _Begun) else one


def _begun_or_done(plan: Rerunning | Sloping) -> _Begun | dict[Key, Replay]:
    """A small plan waits for others; any other is carried out at once: memory is bounded."""
    if isinstance(plan, Sloping) or not all(map(_is_small, plan.gave.values())):
        return rerun_task(plan)
    is_by_rank = any(each.is_by_rank for each in (*plan.gave.values(), *plan.given.values()))
    return rerun_task(plan) if is_by_rank else _begun(plan)


def _is_small(reading: Loading) -> bool:
    task = reading.task
    return task.on == "cpu" and math.prod(task.target.first.shape) <= _SMALL


@dataclass(frozen=True, slots=True)
class _Begun:
    """A plan whose ops were run, and what the target gave out."""

    plan: Rerunning
    again: Rerun
    got: dict[Key, Tensor]


def rerun_task(plan: Rerunning | Sloping) -> dict[Key, Replay]:
    """Carry out one plan. Whatever is wrong with it is told: the others go on."""
    if all(reading.task.on == "cpu" for reading in plan.gave.values()):
        return _rerun(plan)
    import torch

    try:
        found = _rerun(plan)
    except torch.OutOfMemoryError:
        found = {}
    is_known = bool(found) and all(replay.is_known for replay in found.values())
    is_doubted = any(map(wrong, found.values())) and not _is_at_home(plan)
    # What the device cannot run; and an op of another device rounds as that does.
    return _rerun(plan.on_cpu()) if is_doubted or not is_known else found


def _is_at_home(plan: Rerunning | Sloping) -> bool:
    """Whether ops are run again on the kind of device that the target ran them on."""
    return all(
        reading.task.target.first.device.partition(":")[0] == reading.task.on.partition(":")[0]
        for reading in plan.gave.values()
    )


def _rerun(plan: Rerunning | Sloping) -> dict[Key, Replay]:
    try:
        by_rank = [_rerun(plan.of_rank(rank)) for rank in plan.ranks]
    except DumpcmpError as error:
        return dict.fromkeys(plan.gave, Replay(unknown=error.message))
    if by_rank:
        return {key: max((one[key] for one in by_rank), key=_doubt) for key in plan.gave}
    if isinstance(plan, Sloping):
        return slope_task(plan)
    begun = _begun(plan)
    return next(_finished([begun])) if isinstance(begun, _Begun) else begun


def _begun(plan: Rerunning) -> _Begun | dict[Key, Replay]:
    """Run the ops of a plan; what they chose, or why they cannot be run, is all there is to say."""
    try:
        chosen = _chosen(plan)
        if chosen is not None:
            return chosen
        again = _again(plan)
        return _Begun(plan, again, {key: _tensor(each) for key, each in plan.gave.items()})
    except DumpcmpError as error:
        return dict.fromkeys(plan.gave, Replay(unknown=error.message))


def _finished(waiting: Sequence[_Begun]) -> Iterator[dict[Key, Replay]]:
    """What those plans tell, in their order: what the target gave, against what the ops do."""
    from dumpcmp.replay.holding_together import ReplayedValue, ReplayEnds, distances, hold_all

    held = iter(
        hold_all([
            ReplayedValue(one.again, one.plan.slot_of(key), got)
            for one in waiting
            for key, got in one.got.items()
        ])
    )  # fmt: skip
    told = [_settled(one, {key: next(held) for key in one.got}) for one in waiting]
    ends = [
        ReplayEnds(one.again.outputs[one.plan.slot_of(key)], golden)
        for one, (_, goldens) in zip(waiting, told, strict=True)
        for key, golden in goldens.items()
    ]
    inherited = iter(distances(ends))
    for one, (replays, goldens) in zip(waiting, told, strict=True):
        apart = {key: next(inherited) for key in goldens}
        yield replays | {key: _grown(replays[key], far, one.plan) for key, far in apart.items()}


def _settled(
    one: _Begun, replays: dict[Key, Replay]
) -> tuple[dict[Key, Replay], dict[Key, Tensor]]:
    """The replays of a plan in the light of how it was run, and what golden gave of the known."""
    try:
        known = [key for key, replay in replays.items() if replay.is_known]
        found = {key: _in_its_light(one, key, replays[key]) for key in known}
        goldens = {key: loaded(one.plan.gave[key], is_target=False) for key in known}
    except DumpcmpError as error:
        return dict.fromkeys(replays, Replay(unknown=error.message)), {}
    return replays | found, goldens


def _grown(replay: Replay, inherited: float, plan: Rerunning) -> Replay:
    """`replay` with how far the op on the target's inputs is from what golden gave out."""
    grown = inherited / plan.apart if plan.apart else math.nan
    return replay._replace(inherited=inherited, amplification=grown)


def _in_its_light(one: _Begun, key: Key, replay: Replay) -> Replay:
    plan, reading, got, slot = one.plan, one.plan.gave[key], one.got[key], one.plan.slot_of(key)
    units = {place: each.unit for place, each in plan.given.items() if each.unit}
    if units and wrong(replay):
        replay = _in_kernel(one.again, slot, got, plan, units, replay)
    if plan.levels and wrong(replay):
        replay = _in_levels(one, slot, got, replay)
    replay = as_zeros_fit(replay, one.again.outputs[slot], got, reading)
    replay = as_terms_round(replay, (*plan.given.values(), reading))
    is_nearest = replay.is_nearest and plan.is_alone
    return replay if is_nearest == replay.is_nearest else replay._replace(is_nearest=is_nearest)


def _doubt(replay: Replay) -> tuple[bool, bool, bool, float]:
    """How much a replay of one rank tells: what is wrong, then what is not known."""
    is_wrong = replay.is_known and bool(wrong(replay))
    flips = replay.choice is not None and replay.choice.decides
    error = replay.introduced if replay.introduced > 0 else 0.0
    return is_wrong, not replay.is_known, flips, error


def _chosen(plan: Rerunning) -> dict[Key, Replay] | None:
    """What an op that chooses chose; None of any other."""
    from dumpcmp.replay.choosing import choice_of, chooses

    slots = {plan.slot_of(key): reading for key, reading in plan.gave.items()}
    given = {slot: reading for (_, slot), reading in plan.given.items()}
    if not plan.calls or not chooses(plan.calls[-1], given, slots):
        return None
    if len(plan.calls) > 1:
        return dict.fromkeys(plan.gave, Replay(unknown="the target has not what it chose from"))
    ends = [_tensors(each, side) for side in (True, False) for each in (given, slots)]
    choice = choice_of(plan.calls[0], *ends)
    return None if choice is None else dict.fromkeys(plan.gave, Replay(choice=choice))


def _again(plan: Rerunning) -> Rerun:
    """What the target should have given out, by slot."""
    return _run_again(plan, {place: _given(plan, place) for place in plan.given})


def _run_again(plan: Rerunning, given: Mapping[Place, Tensor]) -> Rerun:
    import torch

    from dumpcmp.replay.chains import Chain, rerun_region
    from dumpcmp.replay.running import Rerun, rerun

    if not plan.calls:
        (value,) = given.values()
        wide = value.double() if value.is_floating_point() else value
        return Rerun({plan.slot_of(key): wide for key in plan.gave})
    if len(plan.calls) == 1:
        alone = {at[1]: _as_golden(tensor, plan.given[at]) for at, tensor in given.items()}
        return rerun(plan.calls[0], alone, device=plan.device)
    last = len(plan.calls) - 1
    dtypes = {place: getattr(torch, name) for place, name in plan.dtypes.items()}
    wanted = {slot: (last, slot) for slot in map(plan.slot_of, plan.gave)}
    region = Chain(plan.calls, plan.wires, dtypes)
    return rerun_region(region, given, wanted, device=plan.device)


def _as_golden(tensor: Tensor, reading: Loading) -> Tensor:
    """Integers that golden has as floats in its dtype: what takes the one may refuse the other."""
    golden = dtype_named(reading.task.golden.first.dtype)
    if golden.kind is not Kind.FLOAT or tensor.is_floating_point() or tensor.is_complex():
        return tensor
    import torch

    return tensor.to(getattr(torch, golden.name))


def _in_kernel(
    again: Rerun,
    slot: str,
    got: Tensor,
    plan: Rerunning,
    units: dict[Place, float],
    before: Replay,
) -> Replay:
    """What is wrong with an op of a fused kernel, for which inputs need not have been rounded."""
    from dumpcmp.replay.unrounded import leeway

    def run(given: Mapping[Place, Tensor]) -> Tensor:
        return _run_again(plan, given).outputs[slot]

    given = {place: _given(plan, place) for place in plan.given}
    room = leeway(run, given, units, again.outputs[slot])
    return room.held(again, slot, got, before)


def _in_levels(one: _Begun, slot: str, got: Tensor, before: Replay) -> Replay:
    """What is wrong with what may have been rounded to declared levels: itself, or its factors."""
    known = one.again.outputs[slot]
    found = quantised(value_of(known.cpu()), value_of(got.cpu()), one.plan.levels)
    if found is not None:
        return before._replace(levels=found.said)
    plan = one.plan

    def run(moved: Mapping[Place, Tensor]) -> Tensor:
        return _run_again(plan, moved).outputs[slot]

    product = Product(run, {place: _given(plan, place) for place in plan.given}, known, got)
    factors = {place: factor_of(each) for place, each in plan.given.items()}
    return product.in_levels(factors, plan.levels, before)


def _tensors(readings: Mapping[str, Loading], is_target: bool) -> dict[str, Tensor]:
    """What one side has, on the CPU: choices are judged there."""
    return {slot: to_torch(side_of(each.task, is_target)) for slot, each in readings.items()}


def _given(plan: Rerunning, place: Place) -> Tensor:
    """What a call of `plan` is given; without a call it is one value."""
    reading = plan.given[place]
    if not plan.calls:
        return _tensor(reading)
    return loaded_for(plan.calls[place[0]], reading, reading.is_target)


def _tensor(reading: Loading) -> Tensor:
    return loaded(reading, reading.is_target)
