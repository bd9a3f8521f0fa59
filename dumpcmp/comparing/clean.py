"""Finds the pairs that can differ only by what one op rounds: all it was given is the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from dumpcmp.align.match import Match
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.task import Measured
from dumpcmp.nouns.arithmetic import is_reduction, is_sum
from dumpcmp.nouns.key import Site


def clean_pairs(
    matches: Sequence[Match], measured: Mapping[int, Measured], golden: Side, target: Side
) -> set[Match]:
    """The outputs of ops with equal inputs, and the inputs that should be an equal value unchanged.

    Equal means to the bit. An op that the target ran inside a larger kernel is left out: what
    that kernel kept to itself need not have been rounded as golden rounded it.
    """
    equal = {i: found.metrics is not None and found.metrics.equal for i, found in measured.items()}
    return _outputs(matches, equal, target) | _rewired(matches, equal, golden, target)


def _outputs(matches: Sequence[Match], equal: Mapping[int, bool], target: Side) -> set[Match]:
    given: dict[Site, bool] = defaultdict(lambda: True)
    for i, match in enumerate(matches):
        if match.golden and match.golden.slot.is_input:
            given[match.golden.site] &= equal.get(i, False)
    return {
        match
        for match in matches
        if match.golden
        and match.target
        and not (match.golden.slot.is_input or match.golden.slot.is_gradient)
        and match.golden.site in given
        and given[match.golden.site]
        and not _is_fused(match, target)
    }


def cancellations(
    matches: Sequence[Match], measured: Mapping[int, Measured], golden: Side
) -> dict[Site, float]:
    """How much larger the terms of an op's sums are than what they add up to, by golden's call.

    Rounding is relative to the terms: a sum that all but cancels may be off by that much more.
    """
    given: dict[Site, list[tuple[float, int]]] = defaultdict(list)  # rms and last dim
    gives: dict[Site, float] = {}
    for i, match in enumerate(matches):
        metrics = measured[i].metrics if i in measured else None
        if match.golden is None or metrics is None or not metrics.num_finite:
            continue
        rms = metrics.golden.norm / math.sqrt(metrics.num_finite)
        if match.golden.slot.is_input:
            shape = golden.record_of(match.golden).shape
            given[match.golden.site].append((rms, shape[-1] if shape else 1))
        elif match.golden.slot == "output.0":
            gives[match.golden.site] = rms
    return {
        place: max(1.0, _terms(place.op, terms) / gives[place])
        for place, terms in given.items()
        if gives.get(place)
    }


def _terms(op: str, given: Sequence[tuple[float, int]]) -> float:
    """The size of what an op adds up: its inputs, or the products of a matmul."""
    sizes = [rms for rms, _ in given]
    if is_reduction(op) and len(given) > 1:
        return sizes[0] * sizes[1] * math.sqrt(given[0][1])
    return max(sizes) if is_sum(op) else 0.0


def _is_fused(match: Match, target: Side) -> bool:
    call = target.call_of(match.target) if match.target else None
    return bool(match.inside) or (call is not None and len(call.origins) > 1)


def _rewired(
    matches: Sequence[Match], equal: Mapping[int, bool], golden: Side, target: Side
) -> set[Match]:
    """Inputs that are an earlier value on either side, one that is equal in both runs.

    Where both sides took the same value there is nothing to judge; where they did not, an op was
    put in between or left out.
    """
    ours = {match.golden: i for i, match in enumerate(matches) if match.golden}
    theirs = {match.target: i for i, match in enumerate(matches) if match.target}
    golden_links, target_links = golden.links(), target.links()
    found = set()
    for match in matches:
        if not (match.golden and match.target and match.golden.slot.is_input):
            continue
        before, beside = golden_links.get(match.golden), target_links.get(match.target)
        first = ours.get(before) if before else None
        second = theirs.get(beside) if beside else None
        sources = {first, second} - {None}
        if first != second and any(equal.get(s, False) for s in sources if s is not None):
            found.add(match)
    return found
