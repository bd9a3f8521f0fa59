"""What a reader must know besides the rows: what is missing, proves little, or was not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dumpcmp.comparing.requests import said_of_requests
from dumpcmp.comparing.side import Side
from dumpcmp.judge import Checker, unseen_by
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.row import Row, Verdict, Why, void
from dumpcmp.nouns.selection import Tap

_MOST_CALLS = 3  # that differ for nothing, and are told of one by one


def missing_of(name: str, side: Side) -> Iterator[str]:
    """What is known to be lacking of a run: ranks, ends, records."""
    yield from (f"{name}: {problem}" for problem in side.archive.problems)
    for rank, facts in side.archive.run.items():
        if error := facts.get("run", {}).get("error"):
            yield f"{name}: rank {rank}: the program raised {error}"


def caveats(rule: Checker, rows: Sequence[Row]) -> Iterator[str]:
    """What passes though it proves little: by a rule that does not see all, or without numbers."""
    if said := unseen_by(rule):
        doubted = sum(row.judgement.why is Why.BLIND for row in rows)
        yield f"what passes does so by {said}; {doubted} values would fail by the rounding rule"
    yield from void(rows)
    yield from said_of_requests(rows)


def idle_calls(calls: Mapping[Site, CallDifference], rows: Sequence[Row]) -> Iterator[str]:
    """Calls that differ and that nothing fails for."""
    causes = {row.key.site for row in rows if row.judgement.why is Why.CALL}
    idle = [one for site, one in calls.items() if site not in causes]
    for one in idle[:_MOST_CALLS]:
        yield f"{one.golden_site}: {one.said}; nothing fails for it alone"
    if len(idle) > _MOST_CALLS:
        yield f"{len(idle) - _MOST_CALLS} more calls differ, and nothing fails for them alone"


def facts_to_know(tap: Tap, golden: Side, target: Side, finer: Side | None) -> Iterator[str]:
    """What a reader must know: captures cut short, filters that select nothing, another dtype."""
    sides = {"golden": golden, "my side": target, "the reference": finer}
    for name, side in sides.items():
        if side is not None:
            yield from (f"{name}: {problem}" for problem in side.archive.problems)
            yield from (f"{name}: {text}" for text in _certificates(side))
    ops = {key.op for side in (golden, target) for key in side.archive}
    steps = [key.step for key in golden.archive]
    yield from tap.unmatched(max(steps, default=-1) + 1, ops) if tap != Tap() else ()


def one_sided(rows: Sequence[Row]) -> Iterator[str]:
    """What was computed in other ways on both sides, so that nothing could be held against it."""
    counts = Counter(row.verdict for row in rows)
    covered, dead = counts[Verdict.COVERED], counts[Verdict.DEAD]
    if covered or dead:
        yield (
            f"{covered + dead} values are on one side only: all that was computed from {covered} "
            f"of them agrees, nothing was computed from {dead}"
        )


def _certificates(side: Side) -> set[str]:
    """Whether a compiled run was shown to be what it would have been without its capture."""
    stated = [facts.get("run", {}).get("certificate") for facts in side.archive.run.values()]
    return {str(words.get("text", "")) for words in stated if isinstance(words, dict)}
