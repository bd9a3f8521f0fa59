"""Runs golden's ops again on golden's own inputs: golden may be the side that is wrong.

An op of the target that is right, and gives something else than golden's, leaves golden's in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from dumpcmp.align.pairing import paired_with_itself
from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.carrying_out import rerun_tasks
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.laying import lay_out
from dumpcmp.comparing.measuring import measure_all
from dumpcmp.comparing.placing import placed
from dumpcmp.comparing.rerunning import declared
from dumpcmp.comparing.reruns import Planner, Replaying, Rerunning, UnknownError
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.slopes import Sloping, plan_slopes
from dumpcmp.comparing.spare_inputs import without_spare_inputs
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge import Evidence
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import USUAL, Measured, Pair, Row, Why

_PROVEN = frozenset((Why.LEAF, Why.CALL, Why.WIRED))  # golden's op has no part in it


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """Golden, and what is known of how it was run."""

    side: Side
    allow: frozenset[str]  # shortcuts in arithmetic that it had leave to take
    device: str = "cpu"  # where to run its ops again


def in_doubt(evidence: Sequence[Evidence], rows: Sequence[Row]) -> list[Pair]:
    """The values of both sides of which golden's may be the wrong one; `rows` are judged.

    Where anything fails, these are the roots at which the target's op is not known to be wrong.
    Else they are all that differ although the target's ops are right. Bits that are the same leave
    nothing in doubt.
    """
    if any(row.verdict.fails for row in rows):
        roots = (one for one, row in zip(evidence, rows, strict=True) if _is_open_root(one, row))
        return [one.pair for one in roots]
    return [one.pair for one in evidence if _is_computed(one) and _is_right(one)]


def _is_open_root(one: Evidence, row: Row) -> bool:
    is_proven = row.judgement.why in _PROVEN
    return row.root and _is_computed(one) and not is_proven and _is_right(one)


def _is_computed(one: Evidence) -> bool:
    """Whether both sides computed it, and not with the same bits; each where it first appears."""
    pair = one.pair
    slot = pair.key.slot
    is_made = slot.is_gradient or (slot.is_output and not pair.key.op.is_module)
    return pair.both and is_made and pair.repeats is None and not one.is_equal


def _is_right(one: Evidence) -> bool:
    """Whether the target's op is known to be right, or to have chosen rightly for its scores."""
    replay = one.replay
    if replay is None or not replay.is_known:
        return False
    return not (replay.choice.wrong if replay.choice else wrong(replay))


def with_golden(evidence: Sequence[Evidence], found: Mapping[Pair, Replay]) -> list[Evidence]:
    """`evidence` with what running golden's ops again told."""
    return [
        replace(one, golden_replay=found[one.pair]) if one.pair in found else one
        for one in evidence
    ]


def is_telling(found: Mapping[Pair, Replay]) -> bool:
    """Whether anything of golden is wrong, or could not be run again."""
    return any(not replay.is_known or wrong(replay) for replay in found.values())


def replay_golden(
    doubted: Sequence[Pair], flow: DataFlow, golden: GoldenRun, workers: Executor
) -> dict[Pair, Replay]:
    """What running golden's ops again on golden's own inputs tells of the `doubted` values.

    Tells of those, too, that golden alone has and that lead to them.
    """
    if not doubted:
        return {}
    planner = _planner(golden, workers)
    plans, found = _plans(planner, doubted, flow)
    results = run_batched(rerun_tasks, plans, workers)
    for plan, replays in zip(plans, results, strict=True):
        for key, replay in replays.items():
            own = planner.flow.ours[key]
            replay = replay._replace(inherited=math.nan)  # golden has nothing from another run
            found[own] = declared(own, replay, plan.calls, planner.flow, golden.allow)
    return {flow.ours[own.key]: replay for own, replay in found.items() if own.key in flow.ours}


def _planner(golden: GoldenRun, workers: Executor) -> Planner:
    """What is known of golden beside itself."""
    side, listing = golden.side, golden.side.listing
    pairs = paired_with_itself(listing)
    flow = DataFlow(pairs, listing, listing)
    work = lay_out(pairs, side, side, None, Ways.of(listing, listing), USUAL)
    work = placed(work, golden.device)
    measured: Mapping[Pair, Measured] = {}
    if side.facts.num_ranks > 1:  # how its shards lie
        work, measured = measure_all(work, workers)
    own = without_spare_inputs(flow)
    return Planner(flow, work, measured, Replaying.ALL, own, is_itself=True)


def _plans(
    planner: Planner, doubted: Sequence[Pair], flow: DataFlow
) -> tuple[list[Rerunning | Sloping], dict[Pair, Replay]]:
    own = planner.flow.ours
    gradients = [own[p.golden] for p in doubted if p.golden and p.golden.slot.is_gradient]
    plans: list[Rerunning | Sloping] = []
    slopes, found = plan_slopes(planner, gradients)
    for site in _sites(doubted, flow):
        outputs = planner.outputs(planner.flow.calls[site])
        try:
            plans.append(planner.plan_call(site, outputs))
        except UnknownError as error:
            found |= {pair: Replay(unknown=str(error)) for pair in outputs}
    return [*plans, *slopes], found


def _sites(doubted: Iterable[Pair], flow: DataFlow) -> Iterator[Site]:
    """Golden's calls that gave the `doubted` values, and those that only golden has before them."""
    waiting = [p.golden.site for p in doubted if p.golden and p.golden.slot.is_output]
    seen = set(waiting)
    while waiting:
        site = waiting.pop()
        yield site
        for key in flow.golden.sites[site]:
            first = flow.golden.first(key)
            pair = flow.ours.get(first)
            is_made = first.slot.is_output and not first.op.is_module
            if key.slot.is_input and is_made and pair and not pair.both and first.site not in seen:
                seen.add(first.site)
                waiting.append(first.site)
