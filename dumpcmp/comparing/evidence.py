"""The step before the judge: what the pairs tell of each other, put together for each of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.clues import Clues
from dumpcmp.comparing.terms import terms_given, terms_left
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge import Evidence
from dumpcmp.judge.conditions import Conditions
from dumpcmp.nouns.arithmetic import is_reduction, is_sum, variance_beside
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.row import UNMEASURED, Measured, Pair, Unwritten
from dumpcmp.nouns.spoken import ranks_named


def gather(
    pairs: Sequence[Pair],
    measured: Mapping[Pair, Measured],
    clues: Clues,
    ways: Ways,
) -> list[Evidence]:
    """All that is known of each pair. A value that repeats has the evidence of its first pair."""
    stands_for = {
        pair: pair.repeats if pair.repeats and pair not in measured else pair for pair in pairs
    }
    found = {pair: measured.get(first, UNMEASURED) for pair, first in stands_for.items()}
    found |= {pair: UNMEASURED for pair in pairs if pair.unwritten is Unwritten.WHOLLY}
    clean = clean_pairs(found, ways.golden, ways.target)
    cancelled, moments = cancellations(found, ways.golden), moments_of(found)
    left, given = terms_left(found, ways.target), terms_given(found, ways.target)
    touched = clues.flips.touched

    def conditions(first: Pair, one: Measured) -> Conditions:
        return ways.conditions(
            first,
            inputs_equal=first in clean,
            cancellation=cancelled.get(first.golden.site, 1.0) if first.golden else 1.0,
            usual=clues.usual.get(first, 0.0),
            reference=one.reference,
            **moments.get(first, {}),
        )

    # a value is judged under the same conditions wherever it appears again
    firsts = {first: found[first] for first in stands_for.values() if first in found}
    known = {first: conditions(first, one) for first, one in firsts.items()}
    return [
        Evidence(
            pair,
            found[pair],
            known[first] if firsts.get(first) is found[pair] else conditions(first, found[pair]),
            unsummed=left.get(pair, ""),
            in_terms=given.get(pair, ""),
            replay=clues.replays.get(pair) or clues.replays.get(first),
            touched=touched.get(pair),
            is_code=pair in clues.codes,
            leaf=clues.leaves[pair].said if pair in clues.leaves else "",
            call=_said_of_call(pair, clues.calls),
            holders=_holders(pair, ways.target),
        )
        for pair, first in stands_for.items()
    ]


def _said_of_call(pair: Pair, calls: Mapping[Site, CallDifference]) -> str:
    """In what the calls differ that gave out `pair`."""
    if pair.golden is None or not pair.golden.slot.is_output or pair.golden.site not in calls:
        return ""
    return calls[pair.golden.site].said


def _holders(pair: Pair, target: Listing) -> str:
    """The ranks that have what the target alone has, where not all do."""
    if pair.golden or not pair.target or target.num_ranks == 1:
        return ""
    ranks = {record.rank for record in target.values[pair.target]}
    return ranks_named(ranks) if len(ranks) < target.num_ranks else ""


def clean_pairs(found: Mapping[Pair, Measured], golden: Listing, target: Listing) -> set[Pair]:
    """The outputs of ops with equal inputs, and the inputs that should be an equal value unchanged.

    Such a pair can differ only by what one op rounds. Equal means to the bit. An op that the
    target ran inside a larger kernel is left out: what that kernel kept to itself need not have
    been rounded as golden rounded it.
    """
    equal = {pair for pair, one in found.items() if one.metrics is not None and one.metrics.equal}
    return _outputs(found, equal, target) | _rewired(found, equal, golden, target)


def _outputs(pairs: Iterable[Pair], equal: set[Pair], target: Listing) -> set[Pair]:
    given: dict[Site, bool] = {}
    for pair in pairs:
        if pair.golden and pair.golden.slot.is_input:
            site = pair.golden.site
            given[site] = given.get(site, True) and pair in equal
    return {
        pair
        for pair in pairs
        if pair.golden
        and pair.target
        and not (pair.golden.slot.is_input or pair.golden.slot.is_gradient)
        and given.get(pair.golden.site, False)
        and not _is_fused(pair, pair.target, target)
    }


def _is_fused(pair: Pair, key: Key, target: Listing) -> bool:
    call = target.call(key)
    return bool(pair.inside) or (call is not None and len(call.origins) > 1)


def _rewired(
    pairs: Iterable[Pair], equal: set[Pair], golden: Listing, target: Listing
) -> set[Pair]:
    """Inputs that are an earlier value on either side, one that is equal in both runs.

    Where both sides took the same value there is nothing to judge; where they did not, an op was
    put in between or left out.
    """
    ours = {pair.golden: pair for pair in pairs if pair.golden}
    theirs = {pair.target: pair for pair in pairs if pair.target}
    found = set()
    for pair in pairs:
        if not (pair.golden and pair.target and pair.golden.slot.is_input):
            continue
        before, beside = golden.links.get(pair.golden), target.links.get(pair.target)
        first = ours.get(before) if before else None
        second = theirs.get(beside) if beside else None
        both = [one.golden for one in (first, second) if one is not None and one.golden]
        is_one = len(both) == 2 and len({golden.first(key) for key in both}) == 1  # given out twice
        if first is not second and not is_one and (first in equal or second in equal):
            found.add(pair)
    return found


def cancellations(found: Mapping[Pair, Measured], golden: Listing) -> dict[Site, float]:
    """How much larger the terms of an op's sums are than what they add up to, by golden's call.

    Rounding is relative to the terms: a sum that all but cancels may be off by that much more.
    """
    given: dict[Site, list[tuple[float, int]]] = defaultdict(list)  # rms and last dim
    gives: dict[Site, float] = {}
    for pair, one in found.items():
        metrics = one.metrics
        if pair.golden is None or metrics is None or not metrics.num_finite:
            continue
        rms = _rms(one)
        if pair.golden.slot.is_input:
            shape = golden.record(pair.golden).shape
            given[pair.golden.site].append((rms, shape[-1] if shape else 1))
        elif pair.golden.slot == "output.0":
            gives[pair.golden.site] = rms
    return {
        site: max(1.0, _terms(site.op, terms) / gives[site])
        for site, terms in given.items()
        if gives.get(site)
    }


def moments_of(found: Mapping[Pair, Measured]) -> dict[Pair, dict[str, float]]:
    """What the moments that batch norms keep are judged under, besides what all values are.

    The `spread` of means: where what is normalised has no mean but by rounding, as behind another
    norm, nothing is left of it but that. And how far `apart` the numbers are that they are moments
    of, in any step: no data flow leads from those to what is kept of them.
    """
    kept = [(pair, beside) for pair in found if (beside := _variance_of(pair))]
    if not kept:
        return {}
    wanted = {beside for _, beside in kept}
    variances = {pair.golden: _rms(one) for pair, one in found.items() if pair.golden in wanted}
    apart: dict[tuple[str, str], float] = defaultdict(float)
    for pair, one in found.items():
        key = pair.golden
        if key and one.metrics and key.slot == "input.0" and "batch_norm" in key.op.function:
            where = key.model, key.op.module
            apart[where] = max(apart[where], one.metrics.rel_l2)
    told: dict[Pair, dict[str, float]] = {}
    for pair, beside in kept:
        rms = _rms(found[pair])
        is_mean = pair.golden != beside and rms > 0
        spread = max(1.0, math.sqrt(variances.get(beside, 0.0)) / rms) if is_mean else 1.0
        told[pair] = {"spread": spread, "apart": apart[beside.model, beside.op.module]}
    return told


def _variance_of(pair: Pair) -> Key | None:
    return None if pair.golden is None else variance_beside(pair.golden)


def _rms(one: Measured) -> float:
    metrics = one.metrics
    if metrics is None or not metrics.num_finite:
        return 0.0
    return metrics.golden_rms


def _terms(op: Op, given: Sequence[tuple[float, int]]) -> float:
    """The size of what an op adds up: its inputs, or the products of a matmul."""
    sizes = [rms for rms, _ in given]
    if is_reduction(op) and len(given) > 1:
        return sizes[0] * sizes[1] * math.sqrt(given[0][1])
    return max(sizes) if is_sum(op) else 0.0
