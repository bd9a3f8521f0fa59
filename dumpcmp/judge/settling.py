"""Judges values in the light of what they were computed from: a right op only passes things on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dumpcmp.judge.conditions import INEXACT, Conditions, Evidence
from dumpcmp.judge.tolerances import GROWTH, ILL, SHORT_EPS
from dumpcmp.judge.walking import each_after
from dumpcmp.nouns.replay import Origin, Replay, Touched
from dumpcmp.nouns.row import Judgement, Measured, Pair, Trouble, Verdict, Why

Sources = Mapping[Pair, Sequence[Pair]]  # what each value was computed from, or is

# Faults, whatever came before.
_OWN = frozenset((Why.INTRODUCED, Why.GOLDEN, Why.LEAF, Why.CALL, Why.WIRED))


class _Taint(IntEnum):
    """The worst that lies on the way to a value."""

    NOTHING = 0  # every op on the way is right, or its result the same
    DOUBT = 1  # an op that could not be judged
    FAULT = 2


@dataclass(frozen=True, slots=True)
class Settled:
    """A judgement, and what those must know who were computed from the value."""

    judgement: Judgement
    taint: _Taint = _Taint.NOTHING
    is_flipped: bool = False  # a choice on the way was another
    is_apart: bool = False  # it differs from golden although nothing is wrong
    is_open: bool = False  # nobody could judge it, or it may draw other numbers than golden's


def settle(
    evidence: Sequence[Evidence],
    judged: Callable[[Evidence], Judgement],
    sources: Sources,
    settled: dict[Pair, Settled],
) -> dict[Pair, Judgement]:
    """The judgements in the light of what each value was computed from, `judged` by itself.

    What differs from golden although its op is right fails where a fault lies on the way to it,
    is inconclusive where something lies there that nobody could judge, and passes elsewhere.
    What was `settled` before may be a source; what is settled now is added to it.
    """
    known = {one.pair: one for one in evidence}
    for pair in each_after(known, sources):
        if pair not in known:  # it was moved by a collective
            continue
        before = [settled[source] for source in sources.get(pair, ()) if source in settled]
        one, repeated = known[pair], known.get(pair.repeats) if pair.repeats else None
        is_other = bool(one.unsummed or one.in_terms)
        same = repeated is not None and repeated.measured is one.measured and not is_other
        if repeated is not None and same and repeated.pair in settled:
            first = settled[repeated.pair]
            judgement = _repeated(first.judgement)
            is_same = judgement is first.judgement
            settled[pair] = first if is_same else replace(first, judgement=judgement)
        else:  # it was measured where it is, by another layout say
            settled[pair] = _settled(one, judged(one), before)
    return {pair: settled[pair].judgement for pair in known}


def _settled(one: Evidence, judgement: Judgement, before: Sequence[Settled]) -> Settled:
    taint = max((each.taint for each in before), default=_Taint.NOTHING)
    choice = one.replay.choice if one.replay else None
    is_flipped = one.touched is not None or bool(choice and choice.decides)
    if judgement.why in _OWN:
        return Settled(judgement, _Taint.FAULT, is_flipped, True)
    if judgement.verdict is Verdict.FLIP:
        return Settled(judgement, taint, True, True)
    if one.is_equal:
        return Settled(judgement.coming(Origin.EQUAL))
    laid = one.measured.laid
    if laid and laid.finding and judgement.verdict.fails:  # a replay sees one of the replicas
        return Settled(judgement, _Taint.FAULT, is_flipped, True)
    judgement = judgement.coming(_origin(one.replay, is_flipped))
    if one.call and taint is not _Taint.FAULT and _differs(one.measured):
        fault = Judgement(Verdict.FAIL, one.call, why=Why.CALL, origin=Origin.INTRODUCED)
        return Settled(fault, _Taint.FAULT, is_flipped, True)
    if one.touched is not None and judgement.verdict in (Verdict.PASS, Verdict.DTYPE):
        return _touched(one, one.touched, judgement, taint)
    if not judgement.verdict.fails or not one.pair.both:
        is_open = judgement.verdict is Verdict.INCONCLUSIVE or one.pair.key.slot.is_generator
        is_apart = any(each.is_apart for each in before)
        return Settled(judgement, taint, is_flipped, is_apart, is_open)
    doubt = _Taint.DOUBT if any(each.is_open for each in before) else _Taint.NOTHING
    if one.measured.trouble is Trouble.UNREADABLE or _is_hidden(one, judgement):
        return _unknown(judgement, max(taint, doubt), is_flipped, before)
    if (one.replay is not None and one.replay.is_known and not _is_plain(one)) or _levels(one):
        return _right(judgement, max(taint, doubt), is_flipped, one)
    if _is_passed_on(one):
        passed = _right(judgement, max(taint, doubt), is_flipped, one)
        return _as_other(passed) if passed.judgement.why is Why.RIGHT else passed
    return _unknown(judgement, taint, is_flipped, before)


def _is_passed_on(one: Evidence) -> bool:
    """Whether another choice made all of a value another one, which an op before it gave out.

    Rows that the choice left alone are golden's, or there is something else.
    """
    is_again = one.pair.key.slot.is_input or one.pair.key.op.is_module
    return one.touched is not None and is_again and not one.measured.is_untouched


def _as_other(settled: Settled) -> Settled:
    """The same, where neither numbers nor a replay show that it is right."""
    return replace(settled, judgement=replace(settled.judgement, why=Why.OTHER))


def _levels(one: Evidence) -> str:
    """The levels that a value was rounded to, where that is all that it differs by."""
    return one.replay.levels if one.replay else ""


def _differs(measured: Measured) -> bool:
    """Whether the numbers differ; in another dtype they may be the same."""
    return measured.metrics is not None and measured.metrics.max_abs_diff != 0


def _repeated(judgement: Judgement) -> Judgement:
    """The judgement on a value where it appears again: nothing is wrong or chosen there."""
    if judgement.verdict is Verdict.FLIP:
        return replace(judgement, verdict=Verdict.PASS, why=Why.RIGHT)
    if judgement.why not in _OWN:
        return judgement
    return replace(judgement, why=Why.PLAIN, origin=Origin.INHERITED)


def _is_hidden(one: Evidence, judgement: Judgement) -> bool:
    """Whether most elements that differ are off, which the whole does not show.

    A replay does not show it either: what it was given is not what golden's op was given.
    """
    metrics = one.measured.metrics
    return metrics is not None and metrics.rel_l2 <= judgement.limit < one.conditions.usual


def _is_plain(one: Evidence) -> bool:
    """Whether inputs are equal and each element is rounded once to a short dtype.

    Then golden's own result is a sharper measure than the op in float64.
    """
    return one.conditions.inputs_equal and one.conditions.own_eps > SHORT_EPS


def _origin(replay: Replay | None, is_flipped: bool) -> Origin:
    if replay is None or not replay.is_known:
        return Origin.UNKNOWN
    if is_flipped:
        return Origin.FLIPPED
    return Origin.AMPLIFIED if replay.amplification > GROWTH else Origin.INHERITED


def _touched(one: Evidence, touched: Touched, judgement: Judgement, taint: _Taint) -> Settled:
    """Of a value that agrees with golden as far as no other choice has touched it."""
    slot, op = one.pair.key.slot, one.pair.key.op
    if slot.is_output and not op.is_module and not (one.replay and one.replay.is_known):
        taint = max(taint, _Taint.DOUBT)
    if taint is _Taint.DOUBT and touched.num_touched:
        said = f"{touched.said}, and what computed them could not be judged"
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
        return Settled(doubt, taint, True, True)
    return Settled(replace(judgement, reason=touched.said, why=Why.RIGHT), taint, True, True)


def _right(judgement: Judgement, taint: _Taint, is_flipped: bool, one: Evidence) -> Settled:
    """Of a value that differs although its op is right."""
    measured, condition = one.measured, one.replay.condition if one.replay else 1.0
    is_other = measured.metrics is None and not is_flipped  # of another shape, and nobody chose it
    if taint is _Taint.FAULT or is_other:
        return Settled(judgement, taint, is_flipped, True)
    if _is_exact(one.conditions) and not (is_flipped or one.is_code or _levels(one)):
        return Settled(judgement, _Taint.FAULT, is_flipped, True)
    if taint is _Taint.NOTHING and _levels(one):
        stands = replace(judgement, verdict=Verdict.DTYPE, reason=_levels(one), why=Why.LEVELS)
        return Settled(stands, taint, is_flipped, True)
    if taint is _Taint.DOUBT:
        said = f"{judgement.reason}; the op is right, but one before it could not be judged"
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
        return Settled(doubt, taint, is_flipped, True)
    if one.golden_replay is not None and not one.golden_replay.is_known:
        said = f"{judgement.reason}; the op is right, but golden's could not be run again"
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
        return Settled(doubt, _Taint.DOUBT, is_flipped, True)
    how, why = "another choice was made" if is_flipped else "rounding grew", Why.RIGHT
    if not is_flipped and condition * one.conditions.eps > ILL:
        left = f"this is what is left after cancellation (condition {condition:.1g})"
        how, why = f"{left}, and agrees with nothing", Why.ILL
    said = f"{judgement.reason}; every op on the way is right: {how}"
    absolved = replace(judgement, verdict=Verdict.PASS, reason=said, why=why)
    return Settled(absolved, taint, is_flipped, True)


def _is_exact(conditions: Conditions) -> bool:
    """Whether nothing is rounded on the way to a value, so that no rounding can grow."""
    before = set() if conditions.on_the_way is None else {conditions.on_the_way.kind}
    return not (conditions.kinds | before) & INEXACT


def _unknown(
    judgement: Judgement, taint: _Taint, is_flipped: bool, before: Sequence[Settled]
) -> Settled:
    """Of a value that differs, and nobody knows what its op should have made of what it got."""
    if taint is _Taint.FAULT:
        return Settled(judgement, taint, is_flipped, True)
    if taint is _Taint.DOUBT or any(each.is_apart for each in before):
        said = f"{judgement.reason}; what it was given differs, and the op could not be run again"
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
        return Settled(doubt, _Taint.DOUBT, is_flipped, True)
    return Settled(judgement, _Taint.FAULT, is_flipped, True)
