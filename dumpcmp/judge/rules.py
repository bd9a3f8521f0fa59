"""The judge of a comparison: from all that is known of a pair to the one judgement on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dumpcmp.judge.checkers import ExactChecker
from dumpcmp.judge.conditions import INEXACT, Checker, Evidence, judge, verdict
from dumpcmp.judge.covering import cover
from dumpcmp.judge.replaying import bound, flipped, wrong
from dumpcmp.judge.settling import Settled, Sources, settle
from dumpcmp.judge.tolerances import STANDS_OUT, noise
from dumpcmp.nouns.arithmetic import gives_memory
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.record import NO_KERNEL
from dumpcmp.nouns.replay import Origin, Replay
from dumpcmp.nouns.row import (
    NOWHERE,
    Following,
    Judgement,
    LaidOut,
    Pair,
    Trouble,
    Unwritten,
    Verdict,
    Why,
)
from dumpcmp.nouns.spoken import ranks_named


def judge_all(
    evidence: Sequence[Evidence],
    checker: Checker,
    sources: Sources | None = None,
    following: Following = NOWHERE,
    earlier: dict[Pair, Settled] | None = None,
) -> dict[Pair, Judgement]:
    """One judgement for each pair: each by itself first, then in the light of its `sources`.

    What one side alone has is judged by what was made of it there (`following`).
    Sources may be of `earlier` steps, and what is known of these is added to that.
    What a collective moved may differ because the program meant it to. It is a failure where
    anything that the model computed is one.
    """
    computed = [one for one in evidence if not one.is_moved]
    known = {} if earlier is None else earlier
    own = settle(computed, lambda one: judge_pair(one, checker), sources or {}, known)
    counted = {one.pair for one in evidence if one.measured.laid and one.measured.laid.is_own}
    own |= cover(own, following, counted)
    own |= _by_rows(computed, own, checker)
    followed = any(judgement.verdict.fails for judgement in own.values())
    moved = (replace(one, is_followed=followed) for one in evidence if one.is_moved)
    return own | {one.pair: judge_pair(one, checker) for one in moved}


def _by_rows(
    evidence: Sequence[Evidence], judged: Mapping[Pair, Judgement], checker: Checker
) -> dict[Pair, Judgement]:
    """Judgements on values whose rows travelled, which are golden's row by row.

    Only of what is covered: that every row stands where it should, what follows has shown.
    """
    found = {}
    for one in evidence:
        metrics = one.measured.by_rows
        if metrics is None or judged[one.pair].verdict is not Verdict.COVERED:
            continue
        judgement = judge(metrics, one.conditions, checker)
        if judgement.verdict in (Verdict.PASS, Verdict.DTYPE):
            said = "its rows are golden's, in an order of their own; all that follows agrees"
            found[one.pair] = replace(judgement, reason=said)
    return found


def judge_pair(evidence: Evidence, checker: Checker) -> Judgement:
    """The judgement of the first rule that has a say, in the light of what was noticed besides."""
    for rule in _RULES:
        judgement = rule(evidence)
        if judgement is not None:
            return _noticed(evidence, judgement)
    return _noticed(evidence, _by_numbers(evidence, checker))


def _by_leaf(evidence: Evidence) -> Judgement | None:
    """What no op computed has no rounding to excuse it."""
    if not evidence.leaf:
        return None
    return Judgement(Verdict.FAIL, evidence.leaf, why=Why.LEAF, origin=Origin.INTRODUCED)


def _by_codes(evidence: Evidence) -> Judgement | None:
    """Codes are no numbers: what is computed with them is compared."""
    if not evidence.is_code:
        return None
    return Judgement(Verdict.SKIPPED, "the target has codes here, by levels that are declared")


def _by_memory(evidence: Evidence) -> Judgement | None:
    """What nobody has written yet is no result."""
    key = evidence.pair.key
    fresh = key.slot.is_output and gives_memory(key.op)
    if evidence.is_equal or not (fresh or evidence.pair.unwritten is Unwritten.WHOLLY):
        return None
    return Judgement(Verdict.SKIPPED, "memory as it was found: nothing has been computed yet")


def _by_golden(evidence: Evidence) -> Judgement | None:
    """Whether golden's op did something wrong with what it was given, and the target's did not.

    That the target's is right shows that the op is what was recorded.
    """
    own, replay = evidence.golden_replay, evidence.replay
    if own is None or not own.is_known or not (said := wrong(own)):
        return None
    if evidence.pair.both:
        if replay is None or not replay.is_known:
            return None
        if replay.choice.wrong if replay.choice else wrong(replay):
            return None
    said = _with_others(said, own)
    return Judgement(Verdict.FAIL, said, why=Why.GOLDEN, origin=Origin.INTRODUCED)


def _with_others(said: str, replay: Replay) -> str:
    """What is wrong with a gradient, and the calls of which any may be meant."""
    if len(replay.blamed) < 2:
        return said
    return f"{said}; what {', '.join(replay.blamed)} gave is added up in it: any may be meant"


def _by_replay(evidence: Evidence) -> Judgement | None:
    """Whether the op did something wrong with what it was given, or chose otherwise."""
    replay = evidence.replay
    if replay is None or not replay.is_known:
        return None
    why = Why.WIRED if evidence.pair.key.slot.is_input else Why.INTRODUCED
    if (said := wrong(replay)) and evidence.call:  # which says why
        return Judgement(Verdict.FAIL, evidence.call, why=Why.CALL, origin=Origin.INTRODUCED)
    if said:
        said = _with_others(said, replay)
        return Judgement(Verdict.FAIL, said, why=why, origin=Origin.INTRODUCED)
    is_index = not evidence.conditions.kinds & INEXACT  # what stands at indices is a number
    if replay.choice and replay.choice.decides and is_index and not evidence.is_equal:
        return Judgement(Verdict.FLIP, flipped(replay.choice), origin=Origin.FLIPPED)
    return None


def _by_trouble(evidence: Evidence) -> Judgement | None:
    trouble = evidence.measured.trouble
    why = Why.TERMS if evidence.measured.terms else Why.PLAIN
    return Judgement(_TROUBLES[trouble], evidence.measured.said, why=why) if trouble else None


_TROUBLES = {
    Trouble.UNREADABLE: Verdict.ERROR,
    Trouble.SHAPE: Verdict.SHAPE,
    Trouble.LOST: Verdict.INCONCLUSIVE,
    Trouble.UNSOLVED: Verdict.INCONCLUSIVE,
    Trouble.LACKING: Verdict.UNPAIRED,
    Trouble.UNCHECKED: Verdict.INCONCLUSIVE,
    Trouble.UNKEPT: Verdict.INCONCLUSIVE,
}


def _by_terms(evidence: Evidence) -> Judgement | None:
    """A reduction that is left out is a fault, not a layout."""
    if not evidence.unsummed:
        return None
    said = f"REPLICA: the ranks hold partial terms, {evidence.unsummed}: a reduction is missing"
    return Judgement(Verdict.FAIL, said, why=Why.WIRED, origin=Origin.INTRODUCED)


def _by_result(evidence: Evidence) -> Judgement | None:
    """Terms are no result, unless somebody means them to be."""
    return Judgement(Verdict.INCONCLUSIVE, evidence.in_terms) if evidence.in_terms else None


def _by_delivery(evidence: Evidence) -> Judgement | None:
    """What a collective gave, against what the ranks gave to it: only rounding may differ."""
    metrics, rank = evidence.measured.metrics, evidence.measured.rank
    if metrics is None or rank is None:
        return None
    limit = noise(evidence.conditions.golden.eps)
    near = metrics.nonfinite_agree and metrics.rel_l2 <= limit
    where = f" {evidence.measured.laid.note}" if evidence.measured.laid else ""
    reason = f"rank {rank} did not get what the ranks gave{where}: rel_l2 {metrics.rel_l2:.3g}"
    return verdict(metrics.equal or not metrics.count or near, reason, limit)


def _by_generator(evidence: Evidence) -> Judgement | None:
    """The state of a random generator is no result: another state only explains other numbers."""
    if not evidence.pair.key.slot.is_generator:
        return None
    if not evidence.pair.both:  # an op of another name may not tell that it could draw
        side = "golden" if evidence.pair.golden else "the target"
        return Judgement(Verdict.SKIPPED, f"only {side} tells of its generator here")
    metrics = evidence.measured.metrics
    if metrics is not None and metrics.equal:
        return Judgement(Verdict.PASS)
    reason = "the generators were in different states, so that random ops draw other numbers"
    return Judgement(Verdict.INCONCLUSIVE, f"{reason}: seed both runs alike")


def _by_absence(evidence: Evidence) -> Judgement | None:
    pair = evidence.pair
    if pair.both:
        return None
    if evidence.unasked:
        return Judgement(Verdict.SKIPPED, evidence.unasked, why=Why.UNASKED)
    some = f"the target on {evidence.holders}" if evidence.holders else "the target"
    side = "golden" if pair.golden else some
    if pair.key.slot.is_weight:  # what is computed with it is compared
        return Judgement(Verdict.SKIPPED, f"only {side} has such a weight, or tells of it")
    if evidence.lost:
        return Judgement(Verdict.INCONCLUSIVE, f"only {side} has it; {evidence.lost}")
    if evidence.is_zero:
        other = "the target" if pair.golden else "golden"
        said = f"only {side} has it; it is zero everywhere, and {other} has no gradient there"
        return Judgement(Verdict.COVERED, said)
    if not pair.inside:
        return Judgement(Verdict.UNPAIRED, f"only {side} has it")
    if pair.golden is None:
        reason = f"a step inside the op, in {pair.inside}: golden has no such value"
        return Judgement(Verdict.INCONCLUSIVE, reason)
    if pair.inside == NO_KERNEL:
        said = "no kernel computes it: the compiler folded it into others or removed it"
        return Judgement(Verdict.FUSED, said, why=Why.REMOVED)
    return Judgement(Verdict.FUSED, f"inside {pair.inside}, which does not store it")


_RULES = (
    _by_leaf,
    _by_codes,
    _by_memory,
    _by_terms,
    _by_golden,
    _by_replay,
    _by_trouble,
    _by_result,
    _by_delivery,
    _by_generator,
    _by_absence,
)


def _by_numbers(evidence: Evidence, checker: Checker) -> Judgement:
    metrics, conditions = evidence.measured.metrics, evidence.conditions
    assert metrics is not None, "a pair without trouble has been measured"
    exact = not conditions.kinds & INEXACT  # integers and booleans are equal or not
    try:
        judgement = judge(metrics, conditions, ExactChecker() if exact else checker)
    except CheckError as error:  # this value alone has no reference, say
        return Judgement(Verdict.INCONCLUSIVE, error.message)
    if judgement.verdict is Verdict.FAIL and conditions.inputs_equal and _are_both_right(evidence):
        return Judgement(Verdict.PASS, limit=judgement.limit)
    return judgement


def _are_both_right(evidence: Evidence) -> bool:
    """Whether an op that may round in two ways did so on equal inputs, the one here, one there."""
    replay = evidence.replay
    if replay is None or not replay.is_known or not replay.is_either or wrong(replay):
        return False
    return replay.inherited <= bound(replay)


def _told(laid: LaidOut) -> str:
    """Who has the value where not all ranks do, or is much farther from golden than others."""
    errors = laid.by_rank
    least = min((error for _, error in errors), default=0.0)
    worse = {rank: error for rank, error in errors if error > STANDS_OUT * least}
    if not 0 < len(worse) < len(errors):
        return laid.holders
    return f"wrong: {ranks_named(worse)} (rel_l2 {max(worse.values()):.2g})"


def _noticed(evidence: Evidence, judgement: Judgement) -> Judgement:
    """`judgement`, where replicas differ, ranks can be named, or nothing follows from it."""
    laid, fails = evidence.measured.laid, judgement.verdict.fails
    if laid and laid.finding and not fails:
        judgement = replace(judgement, verdict=Verdict.FAIL, reason=laid.finding)
    elif laid and fails and (said := laid.remark or _told(laid)):
        judgement = replace(judgement, reason=f"{judgement.reason}; {said}")
    is_own = judgement.why in (Why.INTRODUCED, Why.GOLDEN)  # what was given says so
    if judgement.verdict.fails and evidence.pair.both and evidence.pair.unwritten and not is_own:
        said = f"{judgement.reason}; a part of it is memory that nobody has written"
        return replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
    if judgement.verdict.fails and not evidence.is_followed:
        said = f"{judgement.reason}; nothing that the model computed from it differs"
        return replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
    return judgement
