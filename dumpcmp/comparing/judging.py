"""Judges measured rows: what each op could have rounded, and one judgement for each value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dumpcmp.align.match import Listing, Match
from dumpcmp.comparing.clean import cancellations, clean_pairs
from dumpcmp.comparing.partitioned import COLLECTIVE
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.task import Measured
from dumpcmp.judge import INEXACT, Checker, Conditions, ExactChecker, RoundingChecker, judge
from dumpcmp.judge.tolerances import FIT
from dumpcmp.nouns.arithmetic import Arithmetic, arithmetic_of, is_reduction
from dumpcmp.nouns.dtypes import Dtype, dtype_named
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import NO_KERNEL
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why


def judged(
    matches: Sequence[Match],
    measured: Mapping[int, Measured],
    golden: Side,
    target: Side,
    checker: Checker,
) -> list[Row]:
    """One Row for each Match, in its order; what is one value gets one judgement."""
    depth = depths(golden.listing)
    clean = clean_pairs(matches, measured, golden, target)
    cancelled = cancellations(matches, measured, golden)
    way = coarsest(golden.listing), coarsest(target.listing)
    rows = []
    for i, match in enumerate(matches):
        found = measured.get(i, Measured())
        judgement = found.judgement or _generator(match, found) or _one_sided(match)
        if judgement is None:
            assert found.metrics is not None and match.golden is not None
            conditions = _conditions(match, golden, target, found, depth, clean, way)
            conditions = replace(conditions, cancellation=cancelled.get(match.golden.site, 1.0))
            inexact = conditions.kinds & INEXACT  # integers and booleans are equal or not
            judgement = judge(found.metrics, conditions, checker if inexact else ExactChecker())
        judgement = found.laid.speak(judgement) if found.laid else judgement
        rows.append(_row(match, golden, target, found, judgement))
    for i, first in repeats(matches, golden.links(), target.links()).items():
        if rows[i].metrics is not None and measured[i] is measured[first]:
            rows[i] = replace(rows[i], judgement=rows[first].judgement)
    return rows


def fit_limits(matches: Sequence[Match], golden: Side, target: Side) -> dict[int, float]:
    """The rel_l2 up to which a layout fits each pair: well above what rounding explains."""
    depth = depths(golden.listing)
    way = coarsest(golden.listing), coarsest(target.listing)
    rule = RoundingChecker()
    return {
        i: FIT * rule.limit(_conditions(m, golden, target, Measured(), depth, set(), way))
        for i, m in enumerate(matches)
        if m.golden and m.target
    }


def _generator(match: Match, found: Measured) -> Judgement | None:
    """The state of a random generator is no result: another state only explains other numbers."""
    key = match.golden or match.target
    if key is None or not key.slot.startswith("rng."):
        return None
    if found.metrics is not None and found.metrics.equal:
        return Judgement(Verdict.PASS)
    reason = "the generators were in different states, so that random ops draw other numbers"
    return Judgement(Verdict.INCONCLUSIVE, reason)


def _one_sided(match: Match) -> Judgement | None:
    if match.target is None and match.inside:
        if match.inside == NO_KERNEL:
            said = "no kernel computes it: the compiler folded it into others or removed it"
            return Judgement(Verdict.FUSED, said, why=Why.REMOVED)
        return Judgement(Verdict.FUSED, f"inside {match.inside}, which does not store it")
    if match.target is None:
        return Judgement(Verdict.UNPAIRED, "only golden has it")
    if match.golden is None and match.inside:
        reason = f"a step inside the op, in {match.inside}: golden has no such value"
        return Judgement(Verdict.INCONCLUSIVE, reason)
    if match.golden is None:
        return Judgement(Verdict.UNPAIRED, "only the target has it")
    return None


def _conditions(
    match: Match,
    golden: Side,
    target: Side,
    found: Measured,
    depth: Mapping[tuple[Site, bool], int],
    clean: set[Match],
    way: tuple[Mapping[Key, Dtype], Mapping[Key, Dtype]],
) -> Conditions:
    assert match.golden is not None and match.target is not None
    place, record = match.golden.site, golden.record_of(match.golden)
    given = match.golden.slot.is_input
    return Conditions(
        dtype_named(record.dtype),
        dtype_named(target.record_of(match.target).dtype),
        depth[place, match.golden.slot.is_gradient],
        inputs_equal=match in clean,
        arithmetic=Arithmetic.ROUNDS if given else arithmetic_of(place.op),
        shape=record.shape,
        reference=found.reference,
        on_the_way=_coarser(way[0][match.golden], way[1][match.target]),
    )


def repeats(
    matches: Sequence[Match], golden_links: Mapping[Key, Key], target_links: Mapping[Key, Key]
) -> dict[int, int]:
    """The matches of a value that both sides had before, and the match of its first appearance."""
    ours = {match.golden: i for i, match in enumerate(matches) if match.golden}
    theirs = {match.target: i for i, match in enumerate(matches) if match.target}
    found = {}
    for i, match in enumerate(matches):
        before = golden_links.get(match.golden) if match.golden else None
        beside = target_links.get(match.target) if match.target else None
        if before and beside and before in ours and ours[before] == theirs.get(beside) != i:
            found[i] = ours[before]
    return found


def _row(match: Match, golden: Side, target: Side, found: Measured, judgement: Judgement) -> Row:
    key = match.target if match.by == COLLECTIVE and match.target else match.golden or match.target
    assert key is not None
    side = golden if key is match.golden else target
    ours = golden.record_of(match.golden) if match.golden else None
    theirs = target.record_of(match.target) if match.target else None
    call = side.call_of(key)
    return Row(
        key=key,
        order=side.record_of(key).order,
        judgement=judgement,
        metrics=found.metrics,
        golden_key=match.golden,
        target_key=match.target,
        golden_dtype=ours.dtype if ours else "",
        target_dtype=theirs.dtype if theirs else "",
        golden_shape=ours.shape if ours else None,
        target_shape=theirs.shape if theirs else None,
        paired_by=match.by,
        source=call.source if call else "",
        layout=found.laid.note if found.laid else "",
        reference_errors=found.reference,
    )


def depths(listing: Listing) -> dict[tuple[Site, bool], int]:
    """How many residual blocks lie before each call; without numbered blocks, how many reductions.

    A block is a module with a number in its path, counted when the run first enters it. What lies
    before a call's gradients (True) is all of the forward pass, and the way back from its end.
    What another model has computed brings along the depth that it had there.
    """
    depth: dict[tuple[Site, bool], int] = {}
    steps: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for place in listing.places:
        steps[place.model, place.step].append(place)
    within: dict[Site, int] = {}
    for places in steps.values():
        within |= _depths_within(places)
    elsewhere = computed_elsewhere(listing)
    for places in steps.values():
        brought, found = 0, dict[Site, int]()
        for place in places:
            given = [elsewhere[key] for key in listing.places[place] if key in elsewhere]
            brought = max([brought, *(within[key.site] + 1 for key in given)])
            found[place] = within[place] + brought
        deepest = max(found.values(), default=0)
        depth |= {(place, False): before for place, before in found.items()}
        depth |= {(place, True): 2 * deepest - before for place, before in found.items()}
    return depth


def _depths_within(places: Sequence[Site]) -> dict[Site, int]:
    """The depth of each call of one step, as far as that step goes."""
    blocks: dict[str, int] = {}
    found: dict[Site, int] = {}
    reductions = 0
    numbered = any(_block_of(place.op) for place in places)
    for place in places:
        block = _block_of(place.op)
        if block:
            blocks.setdefault(block, len(blocks))
        found[place] = blocks.get(block, len(blocks)) if numbered else reductions
        reductions += is_reduction(place.op)
    return found


def computed_elsewhere(listing: Listing) -> dict[Key, Key]:
    """The inputs of steps that another model gave out, known by their bytes.

    Links stay within a step: what a compiled function does with the result of a model, or one
    model with that of another, is found here.
    """
    given: dict[str, Key] = {}
    for key, (record, *_) in listing.values.items():
        if key.slot.startswith("output") and record.digest and math.prod(record.shape) > 1:
            given.setdefault(record.digest, key)
    found = {}
    for key, (record, *_) in listing.values.items():
        if record.same_as is None and record.digest and key.slot.is_input:
            source = given.get(record.digest)
            if source is not None and source.model != key.model:
                found[key] = source
    return found


def coarsest(listing: Listing) -> dict[Key, Dtype]:
    """The coarsest dtype that each value has come through, also in the model that it is from."""
    elsewhere = computed_elsewhere(listing)
    within = _coarsest(listing, {})
    if not elsewhere:
        return within
    return _coarsest(listing, {key: within[source] for key, source in elsewhere.items()})


def _coarsest(listing: Listing, brought: Mapping[Key, Dtype]) -> dict[Key, Dtype]:
    """The coarsest dtype that each value has come through in its step, or was `brought` in."""
    found: dict[Key, Dtype] = {}
    worst: dict[tuple[str, int], Dtype] = {}
    later: list[Key] = []  # what a module gives out is known after what is inside it
    for place, keys in listing.places.items():
        step = place.model, place.step
        given = [key for key in keys if key.slot.is_input]
        for key in given:
            first = listing.values[key][0].same_as
            before = found.get(first) if first else brought.get(key)
            found[key] = _coarser(_dtype(listing, key), before)
        before = max((found[key] for key in given), key=_eps, default=None)
        for key in keys:
            if not key.slot.is_input:
                found[key] = _coarser(_dtype(listing, key), before)
                later += [key] if "/" not in place.op or key.slot.is_gradient else []
            worst[step] = _coarser(found[key], worst.get(step))
    for key in later:
        first = listing.values[key][0].same_as
        found[key] = found[first] if first in found else worst[key.model, key.step]
    return found


def _dtype(listing: Listing, key: Key) -> Dtype:
    return dtype_named(listing.values[key][0].dtype)


def _eps(dtype: Dtype) -> float:
    return dtype.eps


def _coarser(one: Dtype, other: Dtype | None) -> Dtype:
    return other if other is not None and other.eps > one.eps else one


def _block_of(op: str) -> str:
    """The outermost numbered module that `op` is in: ``layers.3`` of ``layers.3.attn/linear``."""
    segments = op.partition("/")[0].partition("@")[0].split(".")
    for i, segment in enumerate(segments):
        if segment.isdecimal():
            return ".".join(segments[: i + 1])
    return ""
