"""The replaying step: golden's ops in float64 on what the target was given, where sides differ.

Plans are made from metadata, and carried out by workers as measuring is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.carrying_out import rerun_tasks
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.flips import NO_FLIPS, Flips
from dumpcmp.comparing.laying import Job
from dumpcmp.comparing.least_numbers import with_own_limits
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.reruns import Planner, Replaying, Rerunning
from dumpcmp.comparing.shortcuts import lost_in_sums
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.slopes import Sloping, plan_slopes
from dumpcmp.comparing.spare_inputs import without_spare_inputs
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import ACTIVATED, IN_PARTS, QUANTISED, SHORTCUTS
from dumpcmp.nouns.arithmetic import activates_in_short, multiplies_in_parts, shortcuts_of
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Pair


def replay_all(
    flow: DataFlow,
    work: Mapping[Pair, Job],
    measured: Mapping[Pair, Measured],
    executor: Executor,
    how: Replaying = Replaying.AUTO,
    allow: frozenset[str] = frozenset(),
    flips: Flips = NO_FLIPS,
    golden: Side | None = None,
    tell: Tell | None = None,
) -> dict[Pair, Replay]:
    """What running each op again tells of what it gave out; nothing of those that need it not.

    `allow` are shortcuts in arithmetic that the target may have taken.
    Where `flips` made only numbers in a call differ, the target's is run in place of golden's.
    Weights that the target has quantised, and that nobody can see, are taken from `golden`.
    """
    if how is Replaying.OFF:
        return {}
    own = {**with_own_limits(flow), **without_spare_inputs(flow), **flips.own}
    levels = tuple(sorted(allow & QUANTISED.keys()))
    planner = Planner(flow, work, measured, how, own, flips.trails, levels, golden)
    forward, found = planner.plans()
    backward, unknown = plan_slopes(planner)
    plans: list[Rerunning | Sloping] = [*forward, *backward]
    found |= unknown
    sizes = [plan.nbytes for plan in plans] if tell else [0] * len(plans)
    total, done = sum(sizes), 0
    results = run_batched(rerun_tasks, plans, executor)
    for plan, nbytes, replays in zip(plans, sizes, results, strict=True):
        told = {flow.ours[key]: replay for key, replay in replays.items()}
        found |= {pair: declared(pair, one, plan.calls, flow, allow) for pair, one in told.items()}
        done += nbytes
        if tell and nbytes:
            tell(done, total)
    return found


def again_beside(flow: DataFlow, found: Mapping[Pair, Replay]) -> dict[Pair, Replay]:
    """The replays of what stands beside golden's value once more, where it is the same, and right.

    A call of the target may take a value in another place than golden's does, where it has its row.
    """
    told: dict[Pair, Replay] = {}
    for pair in flow.pairs:
        if pair.golden is None or pair.target is None or pair in found:
            continue
        main = flow.ours[pair.golden]
        if main is pair or main not in found or main.target is None:
            continue
        if wrong(found[main]) or not found[main].is_known:
            continue
        if flow.target.first(pair.target) == flow.target.first(main.target):
            told[pair] = found[main]
    return told


def declared(
    pair: Pair, replay: Replay, calls: Sequence[Call], flow: DataFlow, allow: frozenset[str]
) -> Replay:
    """`replay` with what the shortcuts round that the `calls` may take which were run again."""
    if pair.target is None:
        return replay
    record, ops = flow.target.record(pair.target), [call.op for call in calls]
    words = frozenset(word for op in ops for word in shortcuts_of(op, record.dtype)) & allow
    rounds = [SHORTCUTS[word] for word in words]
    if any(multiplies_in_parts(op, record.dtype, record.device) for op in ops):
        rounds.append(IN_PARTS)
    if any(activates_in_short(op, record.dtype, record.device) for op in ops):
        rounds.append(ACTIVATED)
    rounds += (lost_in_sums(call, flow.golden, record.device) for call in calls)
    return replay._replace(shortcut=max(rounds, default=0.0))
