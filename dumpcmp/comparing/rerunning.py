"""The replaying step: golden's ops in float64 on what the target was given, where sides differ.

Plans are made from metadata, and carried out by workers as measuring is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.both_sides import side_of
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.flips import NO_FLIPS, Flips
from dumpcmp.comparing.laying import Job
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.placing import loaded
from dumpcmp.comparing.reruns import Loading, Planner, Replaying, Rerunning
from dumpcmp.comparing.slopes import Sloping, plan_slopes, slope_task
from dumpcmp.comparing.taping import Place
from dumpcmp.comparing.term_rounding import as_terms_round, as_zeros_fit
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import IN_PARTS, SHORTCUTS
from dumpcmp.nouns.arithmetic import multiplies_in_parts, shortcuts_of
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Pair
from dumpcmp.nouns.value import Kind, dtype_named, to_torch

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor

    from dumpcmp.replay.running import Rerun


def replay_all(
    flow: DataFlow,
    work: Mapping[Pair, Job],
    measured: Mapping[Pair, Measured],
    executor: Executor,
    how: Replaying = Replaying.AUTO,
    allow: frozenset[str] = frozenset(),
    flips: Flips = NO_FLIPS,
    tell: Tell | None = None,
) -> dict[Pair, Replay]:
    """What running each op again tells of what it gave out; nothing of those that need it not.

    `allow` are shortcuts in arithmetic that the target may have taken.
    Where `flips` made only numbers in a call differ, the target's is run in place of golden's.
    """
    if how is Replaying.OFF:
        return {}
    planner = Planner(flow, work, measured, how, flips.own, flips.trails)
    forward, found = planner.plans()
    backward, unknown = plan_slopes(planner)
    plans: list[Rerunning | Sloping] = [*forward, *backward]
    found |= unknown
    total, done = sum(plan.nbytes for plan in plans), 0
    for plan, replays in zip(plans, run_batched(rerun_task, plans, executor), strict=True):
        ops = [call.op for call in plan.calls]
        told = {flow.ours[key]: replay for key, replay in replays.items()}
        found |= {pair: _declared(pair, one, ops, flow, allow) for pair, one in told.items()}
        done += plan.nbytes
        if tell and plan.nbytes:
            tell(done, total)
    return found


def _declared(
    pair: Pair, replay: Replay, ops: Sequence[Op], flow: DataFlow, allow: frozenset[str]
) -> Replay:
    """`replay` with what the shortcuts round that the `ops` may have taken which were run again."""
    if pair.target is None:
        return replay
    record = flow.target.record(pair.target)
    words = frozenset(word for op in ops for word in shortcuts_of(op, record.dtype)) & allow
    parts = any(multiplies_in_parts(op, record.dtype, record.device) for op in ops)
    rounds = [SHORTCUTS[word] for word in words] + ([IN_PARTS] if parts else [])
    return replay._replace(shortcut=max(rounds)) if rounds else replay


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
    try:
        chosen = _chosen(plan)
        if chosen is not None:
            return chosen
        again = _again(plan)
        return {key: _held(again, key, reading, plan) for key, reading in plan.gave.items()}
    except DumpcmpError as error:
        return dict.fromkeys(plan.gave, Replay(unknown=error.message))


def _doubt(replay: Replay) -> tuple[bool, bool, bool, float]:
    """How much a replay of one rank tells: what is wrong, then what is not known."""
    is_wrong = replay.is_known and bool(wrong(replay))
    flips = replay.choice is not None and replay.choice.decides
    error = replay.introduced if replay.introduced > 0 else 0.0
    return is_wrong, not replay.is_known, flips, error


def _chosen(plan: Rerunning) -> dict[Key, Replay] | None:
    """What an op that chooses chose; None of any other."""
    from dumpcmp.replay.choosing import choice_of, chooses

    slots = {str(key.slot): reading for key, reading in plan.gave.items()}
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
    return _run_again(plan, {place: _tensor(reading) for place, reading in plan.given.items()})


def _run_again(plan: Rerunning, given: Mapping[Place, Tensor]) -> Rerun:
    import torch

    from dumpcmp.replay.chains import Chain, rerun_region
    from dumpcmp.replay.running import Rerun, rerun

    if not plan.calls:
        (value,) = given.values()
        wide = value.double() if value.is_floating_point() else value
        return Rerun({str(key.slot): wide for key in plan.gave})
    if len(plan.calls) == 1:
        alone = {at[1]: _as_golden(tensor, plan.given[at]) for at, tensor in given.items()}
        return rerun(plan.calls[0], alone, device=plan.device)
    last = len(plan.calls) - 1
    dtypes = {place: getattr(torch, name) for place, name in plan.dtypes.items()}
    wanted = {str(key.slot): (last, str(key.slot)) for key in plan.gave}
    region = Chain(plan.calls, plan.wires, dtypes)
    return rerun_region(region, given, wanted, device=plan.device)


def _as_golden(tensor: Tensor, reading: Loading) -> Tensor:
    """Integers that golden has as floats in its dtype: what takes the one may refuse the other."""
    golden = dtype_named(reading.task.golden.first.dtype)
    if golden.kind is not Kind.FLOAT or tensor.is_floating_point() or tensor.is_complex():
        return tensor
    import torch

    return tensor.to(getattr(torch, golden.name))


def _held(again: Rerun, key: Key, reading: Loading, plan: Rerunning) -> Replay:
    from dumpcmp.replay.holding import hold

    slot = str(key.slot)
    got = _tensor(reading)
    replay = hold(again, slot, got)
    if not replay.is_known:
        return replay
    units = {place: each.unit for place, each in plan.given.items() if each.unit}
    if units and wrong(replay):
        replay = _in_kernel(again, slot, got, plan, units, replay)
    replay = as_zeros_fit(replay, again.outputs[slot], got, reading)
    replay = as_terms_round(replay, (*plan.given.values(), reading))
    is_nearest = replay.is_nearest and plan.is_alone
    inherited = _inherited(again.outputs[slot], reading)
    grown = inherited / plan.apart if plan.apart else math.nan
    return replay._replace(is_nearest=is_nearest, inherited=inherited, amplification=grown)


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

    given = {place: _tensor(each) for place, each in plan.given.items()}
    room = leeway(run, given, units, again.outputs[slot])
    return room.held(again, slot, got, before)


def _tensors(readings: Mapping[str, Loading], is_target: bool) -> dict[str, Tensor]:
    """What one side has, on the CPU: choices are judged there."""
    return {slot: to_torch(side_of(each.task, is_target)) for slot, each in readings.items()}


def _tensor(reading: Loading) -> Tensor:
    return loaded(reading, reading.is_target)


def _inherited(again: Tensor, reading: Loading) -> float:
    """How far the op on the target's inputs is from what golden gave out."""
    golden = loaded(reading, is_target=False)
    if golden.shape != again.shape or not again.is_floating_point():
        return math.nan
    import torch

    golden = golden.to(again)
    norm = float(torch.linalg.vector_norm(golden))
    return float(torch.linalg.vector_norm(again - golden)) / norm if norm else math.nan
