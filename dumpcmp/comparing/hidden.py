"""What the few largest elements of a value hide: how far off the others are."""

from __future__ import annotations

from collections.abc import Mapping

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.side import Side
from dumpcmp.judge.tolerances import HIDDEN, noise
from dumpcmp.measure.elements import usual_error
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Metrics, Pair
from dumpcmp.nouns.value import dtype_named


def usual_errors(
    flow: DataFlow,
    measured: Mapping[Pair, Measured],
    replays: Mapping[Pair, Replay],
    golden: Side,
    target: Side,
) -> dict[Pair, float]:
    """What half of the elements that differ are off, where nobody knows what they were made of.

    Of a residual stream with one activation of thousands rel_l2 tells no more than that one; so a
    value is looked at where the mean error of its elements is above what rounding explains.
    """
    found = {}
    for pair, one in measured.items():
        metrics = one.metrics
        if metrics is None or not _may_hide(metrics, golden, pair):
            continue
        if _is_own(flow, pair) and not _is_explained(flow, pair, replays.get(pair)):
            found[pair] = _usual(pair, metrics.golden_rms, golden, target)
    return found


def _is_explained(flow: DataFlow, pair: Pair, replay: Replay | None) -> bool:
    """Whether the op was run again, and what it was given was compared."""
    is_known = replay is not None and replay.is_known
    return is_known and all(given.both for given in flow.given_to(pair))


def _may_hide(metrics: Metrics, golden: Side, pair: Pair) -> bool:
    """Whether the mean error of elements, which is half of their median at least, is large."""
    if pair.golden is None or pair.target is None or metrics.equal or not metrics.exact:
        return False
    slot = pair.golden.slot
    if slot.is_gradient or slot.is_weight or slot.is_generator or not metrics.nonfinite_agree:
        return False
    eps = dtype_named(golden.listing.record(pair.golden).dtype).eps
    least = max(HIDDEN / 2 * noise(eps), 2 * metrics.rel_l2)
    return bool(eps) and metrics.mean_rel_err_plain > least


def _is_own(flow: DataFlow, pair: Pair) -> bool:
    """Whether a value is no other one again: it was given out, or is another on either side."""
    ours, theirs = flow.taken_from(pair)
    return ours is None or not flow.are_one(ours, theirs)


def _usual(pair: Pair, rms: float, golden: Side, target: Side) -> float:
    """What half of the elements of a pair are off; 0 where nobody can read it, as its row tells."""
    if pair.golden is None or pair.target is None:
        return 0.0
    try:
        ours, theirs = golden.load(pair.golden), target.load(pair.target)
    except DumpcmpError:
        return 0.0
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return 0.0
    return usual_error(ours, theirs, rms)
