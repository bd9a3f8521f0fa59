"""What is known of pairs besides their numbers: replays, flips, leaves and calls."""

from __future__ import annotations

from collections.abc import Container, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.flips import Flips, follow_flips
from dumpcmp.comparing.hidden import usual_errors
from dumpcmp.comparing.kept_states import kept_states, replay_states
from dumpcmp.comparing.laying import Job
from dumpcmp.comparing.leaves import leaf_findings
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.paired_calls import call_differences
from dumpcmp.comparing.quantised import codes_among, quantised_weights, rounded_again
from dumpcmp.comparing.read_off import with_read_numbers
from dumpcmp.comparing.rerunning import again_beside, replay_all
from dumpcmp.comparing.reruns import Replaying
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.staleness import WeightHistory
from dumpcmp.comparing.trained import Courses, replay_updates
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.leaf import LeafFinding
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Pair


@dataclass(frozen=True, slots=True)
class Clues:
    """All of them. A tolerance that the user states is about numbers alone, and has none."""

    replays: Mapping[Pair, Replay] = field(default_factory=dict)
    flips: Flips = field(default_factory=Flips)
    leaves: Mapping[Pair, LeafFinding] = field(default_factory=dict)
    calls: Mapping[Site, CallDifference] = field(default_factory=dict)
    usual: Mapping[Pair, float] = field(default_factory=dict)  # what half of what differs is off
    codes: Container[Pair] = frozenset()  # integers that stand for golden's numbers


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Where to look for clues, and how closely."""

    golden: Side
    target: Side
    how: Replaying
    allow: frozenset[str]  # shortcuts in arithmetic that the target may have taken
    is_apart: bool = False  # the sides differ in earlier steps
    history: WeightHistory = field(default_factory=WeightHistory)
    courses: Courses = field(default_factory=Courses)
    tell: Tell | None = None  # is told how many bytes were run again


def find_clues(
    inquiry: Inquiry,
    flow: DataFlow,
    work: Mapping[Pair, Job],
    measured: Mapping[Pair, Measured],
    workers: Executor,
) -> Clues:
    """Look at what does not show in numbers: what ops did with what they were given."""
    golden, target = inquiry.golden, inquiry.target
    is_off = inquiry.how is Replaying.OFF
    calls = call_differences(flow.pairs, golden.listing, target.listing)
    flips = Flips() if is_off else follow_flips(flow, work, measured)
    read = with_read_numbers(flow, calls.values(), work, measured)
    flips = replace(flips, own={**read, **flips.own})
    leaves = leaf_findings(flow.pairs, measured, golden, target, inquiry.is_apart)
    rounded = quantised_weights(leaves, golden, target, inquiry.allow)
    leaves = {pair: leaf for pair, leaf in leaves.items() if pair not in rounded}
    stale = inquiry.history.stale(flow.pairs, golden, target)
    how, allow, tell = inquiry.how, inquiry.allow, inquiry.tell
    made = inquiry.courses.updates(flow.pairs, golden, target, partial(_found, measured))
    updates = {} if is_off else replay_updates(made, workers)
    kept = kept_states(flow.pairs, inquiry.courses, golden, target, partial(_found, measured))
    right = {pair for pair, one in updates.items() if one.is_known and not wrong(one)}
    replays = updates | replay_all(flow, work, measured, workers, how, allow, flips, golden, tell)
    replays |= {} if is_off else replay_states(kept, workers)
    replays |= rounded
    replays |= rounded_again(replays, flow.pairs, golden.listing, target.listing)
    replays |= {pair: Replay() for pair in flow.again if pair not in replays}
    replays |= again_beside(flow, replays)
    return Clues(
        replays,
        flips,
        leaves | {pair: each for pair, each in stale.items() if pair not in right},
        {site: each for site, each in calls.items() if site not in flips.own},
        usual_errors(flow, measured, replays, golden, target),
        codes_among(flow.pairs, golden.listing, target.listing, allow) - rounded.keys(),
    )


def _found(measured: Mapping[Pair, Measured], pair: Pair) -> Measured | None:
    """What measuring found of a pair, or of the one that it repeats."""
    first = pair if pair in measured or pair.repeats is None else pair.repeats
    return measured.get(first)
