"""Judges values that one side alone has by what was made of them: covered, dead, or open."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from enum import IntEnum

from dumpcmp.judge.walking import each_after
from dumpcmp.nouns.row import Following, Judgement, Pair, Verdict, Why


class _Way(IntEnum):
    """What the ways from a value lead to; the worst of them counts."""

    ITSELF = -1  # it was compared where it was taken, and agrees
    NOWHERE = 0
    AGREEING = 1  # to values that both sides have and that agree
    UNSHOWN = 2  # to values that are others after another choice: nothing was compared
    UNREAD = 3  # to values that both sides have and that could not be read
    UNSEEN = 4  # to an end that the other side does not have, or that was not judged
    FAILING = 5  # to values that differ


_KNOWN = (_Way.AGREEING, _Way.ITSELF)
_AGREES = frozenset(map(Verdict, ("PASS", "DTYPE", "EMPTY", "FLIP")))
_SAID = {
    _Way.ITSELF: "where it is taken both sides agree",
    _Way.NOWHERE: "nothing that is recorded was computed from it",
    _Way.AGREEING: "all that was computed from it agrees",
    _Way.UNSHOWN: "what was computed from it is another computation after another choice, and "
    "could not be compared",
    _Way.UNREAD: "what was computed from it could not be read",
    _Way.UNSEEN: "nothing after it shows whether it is right",
    _Way.FAILING: "what was computed from it differs",
}
_VERDICTS = {
    _Way.ITSELF: Verdict.COVERED,
    _Way.NOWHERE: Verdict.DEAD,
    _Way.AGREEING: Verdict.COVERED,
    _Way.UNSHOWN: Verdict.INCONCLUSIVE,
    _Way.UNREAD: Verdict.INCONCLUSIVE,
}


def cover(
    judgements: Mapping[Pair, Judgement],
    following: Following,
    own: Container[Pair] = frozenset(),
) -> dict[Pair, Judgement]:
    """Other judgements on values that one side alone has, as far as what follows them tells.

    Two sides may compute the same in other ways. A value on the way is right, or does not matter,
    where all that was made of it agrees; and so is one that was compared where it is taken, such
    as after a cast to another dtype, whatever is made of it there. So it is with numbers that
    ranks count for themselves (`own`), too. What is right given its inputs, after another choice,
    is no evidence for what one side left out before it: that is inconclusive.
    """
    ways: dict[Pair, _Way] = {}
    for pair in each_after(following.made, following.made):
        ways[pair] = _way(pair, judgements, following, ways)
    return {
        pair: _judged(judgements[pair], way)
        for pair, way in ways.items()
        if pair in judgements and _is_open(judgements[pair], way, pair in own)
    }


def _is_open(judgement: Judgement, way: _Way, is_own: bool) -> bool:
    """Whether what follows has a say: of one side alone, or of shards that nobody could join."""
    doubtful = judgement.verdict is Verdict.INCONCLUSIVE or is_own
    return judgement.verdict is Verdict.UNPAIRED or (doubtful and way in _KNOWN)


def _way(
    pair: Pair,
    judgements: Mapping[Pair, Judgement],
    following: Following,
    ways: Mapping[Pair, _Way],
) -> _Way:
    found = [
        _through(ways.get(other)) if other in following.made else _end(judgements.get(other))
        for other in following.made.get(pair, ())
    ]
    if pair in following.ends:
        found.append(_Way.UNSEEN)
    worst = max(found, default=_Way.NOWHERE)
    if worst is _Way.NOWHERE and pair in following.left:
        worst = _Way.UNSEEN
    is_known = any(_is_same(judgements.get(other)) for other in following.taken.get(pair, ()))
    return _Way.ITSELF if is_known and worst > _Way.AGREEING else worst


def _through(way: _Way | None) -> _Way:
    """What a value leads to by another one that the side alone has."""
    return _Way.AGREEING if way is _Way.ITSELF else way or _Way.NOWHERE


def _is_same(judgement: Judgement | None) -> bool:
    """Whether a value was measured and is golden's, and not merely a right one."""
    measured = judgement is not None and judgement.verdict in (Verdict.PASS, Verdict.DTYPE)
    return measured and judgement is not None and judgement.why is Why.PLAIN


def _end(judgement: Judgement | None) -> _Way:
    if judgement is not None and judgement.verdict is Verdict.ERROR:
        return _Way.UNREAD
    if judgement is not None and judgement.verdict.fails:
        return _Way.FAILING
    if judgement is not None and judgement.verdict is Verdict.SKIPPED:
        return _Way.NOWHERE  # of what it was given, ``empty_like`` takes the shape alone
    if judgement is None or judgement.verdict not in _AGREES:
        return _Way.UNSEEN
    return _Way.UNSHOWN if judgement.why is Why.OTHER else _Way.AGREEING


def _judged(judgement: Judgement, way: _Way) -> Judgement:
    verdict = _VERDICTS.get(way, Verdict.UNPAIRED)
    why = Why.UNSHOWN if way is _Way.UNSHOWN else judgement.why
    said = f"{judgement.reason}; {_SAID[way]}"
    return replace(judgement, verdict=verdict, reason=said, why=why)
