"""The use case, as a straight line: pair, lay out, measure, replay, judge, blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path

from dumpcmp.align.followers import followers
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.align.pairing import pair_values
from dumpcmp.align.renaming import Renaming, read_mapping
from dumpcmp.comparing.blame import blame, in_order
from dumpcmp.comparing.clues import Clues, Inquiry, find_clues
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.evidence import gather
from dumpcmp.comparing.laying import lay_out
from dumpcmp.comparing.measuring import Tell, measure_all, traffic_at
from dumpcmp.comparing.own_metrics import asking, said_of_own
from dumpcmp.comparing.requests import Asking, said_of_requests, spared
from dumpcmp.comparing.reruns import Replaying
from dumpcmp.comparing.shortcuts import allowed, said_of
from dumpcmp.comparing.side import Side, archive_at, open_side
from dumpcmp.comparing.ways import Ways
from dumpcmp.execute import executor_for
from dumpcmp.judge import (
    Checker,
    Evidence,
    Fp64Checker,
    ReferenceChecker,
    RoundingChecker,
    judge_all,
    unseen_by,
)
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.errors import CheckError, SelectionError
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why, void
from dumpcmp.nouns.selection import Tap, make_tap

PathLike = str | Path
_MOST_CALLS = 3  # that differ for nothing, and are told of one by one


def compare(
    golden: PathLike,
    target: PathLike,
    *,
    reference: PathLike | None = None,
    mapping: PathLike | None = None,
    layers: str | Sequence[str] | None = None,
    tokens: str | Iterable[int] | None = None,
    token_offset: int = 0,
    layouts: str | Sequence[str] = (),
    checker: Checker | None = None,
    metrics: str | Sequence[str] = (),
    replay: str = Replaying.AUTO,
    allow: str | Sequence[str] = (),
    partial: bool = False,
    verify_digests: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Tell | None = None,
) -> Outcome:
    """Compare the archive `target` with `golden`, value by value, and find the first divergence.

        outcome = dumpcmp.compare("d1", "d2")
        print(outcome.first_divergence)
        outcome.to_pandas()

    `reference` is an archive of golden in higher precision. `layers` and `tokens` select as in
    `dumpcmp.capture`. `layouts` say how a partitioned run's values lie over its mesh: files, or
    lines such as ``"layers.*.o=b s h[tp:partial]"``. `replay` says which ops are run again in
    float64 on what the target was given: ``"auto"`` those that need it, ``"all"``, or ``"off"``.
    `allow` names shortcuts in arithmetic that the target took, such as
    ``"tf32"``, besides those that its run had leave to take. Runs that are known not to be whole
    are never called the same, unless `partial` says that this is known. What is measured is held
    against its digest; `verify_digests` does so with values, too, that need not be read because
    their digests are the same. `executor`, or `jobs` processes, do the measuring; the outcome is
    the same.
    """
    _forget()
    tap = make_tap(tokens, layers)
    stated = read_stated([layouts] if isinstance(layouts, str) else layouts)
    ours = open_side(golden, tap, declared=stated.golden)
    theirs = open_side(target, tap, token_offset, stated.target)
    finer = open_side(reference, tap) if reference is not None else None
    renaming = read_mapping(Path(mapping)) if mapping is not None else Renaming()
    for side in (ours, theirs):
        side.check_digests(every=verify_digests)
    rule = _chosen(checker, finer)
    shortcuts = allowed(allow, theirs)
    strict = isinstance(rule, ReferenceChecker | RoundingChecker)

    pairs = pair_values(ours.listing, theirs.listing, renaming, token_offset)
    ways = Ways.of(ours.listing, theirs.listing)
    work = lay_out(pairs, ours, theirs, finer, ways, rule.closeness)
    work = asking(work, [metrics] if isinstance(metrics, str) else metrics)
    with nullcontext(executor) if executor is not None else executor_for(jobs) as workers:
        measured = measure_all(work, workers, progress)
        flow = DataFlow(pairs, ours.listing, theirs.listing)
        inquiry = Inquiry(ours, theirs, _replaying(replay), shortcuts)
        clues = find_clues(inquiry, flow, work, measured, workers) if strict else Clues()
    measured = clues.flips.measured(work, measured, rule.closeness)
    evidence = gather(pairs, measured, clues, ways)
    evidence = spared(evidence, Asking.of(ours.archive), Asking.of(theirs.archive, token_offset))
    following = followers(pairs, ours.listing, theirs.listing)
    judgements = judge_all(evidence, rule, flow.sources, following)
    rows = [_row(one, judgements[one.pair], ways) for one in evidence]
    rows = blame(rows, ours.listing, theirs.listing)
    remarks = [
        *_idle(clues.calls, rows),
        *_caveats(rule, rows),
        *said_of_own(measured),
        *_remarks(tap, ours, theirs, finer),
    ]
    remarks += renaming.idle(
        *({key.op.plain for key in side.listing.values} for side in (ours, theirs))
    )
    remarks += [*said_of(shortcuts), *_unseen(rows)]
    roots = in_order(row for row in rows if row.root)
    missing = () if partial else (*_missing("golden", ours), *_missing("my side", theirs))
    return Outcome(tuple(rows), tuple(roots), tuple(remarks), missing)


def _missing(name: str, side: Side) -> Iterator[str]:
    """What is known to be lacking of a run: ranks, ends, records."""
    yield from (f"{name}: {problem}" for problem in side.archive.problems)
    for rank, facts in side.archive.run.items():
        if error := facts.get("run", {}).get("error"):
            yield f"{name}: rank {rank}: the program raised {error}"


def _forget() -> None:
    """A path may hold another run than it did at the last comparison."""
    traffic_at.cache_clear()
    archive_at.cache_clear()


def _chosen(checker: Checker | None, finer: Side | None) -> Checker:
    if isinstance(checker, Fp64Checker) and finer is None:
        raise CheckError(
            "Fp64Checker needs a run of golden in higher precision",
            hint="compare: --reference with a dump of golden in float64",
        )
    return checker or ReferenceChecker()


def _replaying(word: str) -> Replaying:
    try:
        return Replaying(word)
    except ValueError:
        hint = f"valid are: {', '.join(Replaying)}"
        raise SelectionError(f"replay {word!r} is not known", hint=hint) from None


def _row(evidence: Evidence, judgement: Judgement, ways: Ways) -> Row:
    pair, measured = evidence.pair, evidence.measured
    listing = ways.golden if pair.key is pair.golden else ways.target
    ours = ways.golden.record(pair.golden) if pair.golden else None
    theirs = ways.target.record(pair.target) if pair.target else None
    call = listing.call(pair.key)
    return Row(
        key=pair.key,
        order=listing.record(pair.key).order,
        judgement=judgement,
        metrics=measured.metrics,
        golden_key=pair.golden,
        target_key=pair.target,
        golden_dtype=ours.dtype if ours else "",
        target_dtype=theirs.dtype if theirs else "",
        golden_shape=ours.shape if ours else None,
        target_shape=theirs.shape if theirs else None,
        paired_by=pair.by,
        source=call.source if call else "",
        layout=measured.laid.note if measured.laid else "",
        reference_errors=measured.reference,
        own=measured.own,
        replay=evidence.replay,
        touched=evidence.touched,
    )


def _caveats(rule: Checker, rows: Sequence[Row]) -> Iterator[str]:
    """What passes though it proves little: by a rule that does not see all, or without numbers."""
    if said := unseen_by(rule):
        doubted = sum(row.judgement.why is Why.BLIND for row in rows)
        yield f"what passes does so by {said}; {doubted} values would fail by the rounding rule"
    yield from void(rows)
    yield from said_of_requests(rows)


def _idle(calls: Mapping[Site, CallDifference], rows: Sequence[Row]) -> Iterator[str]:
    """Calls that differ and that nothing fails for."""
    causes = {row.key.site for row in rows if row.judgement.why is Why.CALL}
    idle = [one for site, one in calls.items() if site not in causes]
    for one in idle[:_MOST_CALLS]:
        yield f"{one.golden_site}: {one.said}; nothing fails for it alone"
    if len(idle) > _MOST_CALLS:
        yield f"{len(idle) - _MOST_CALLS} more calls differ, and nothing fails for them alone"


def _remarks(tap: Tap, golden: Side, target: Side, finer: Side | None) -> Iterator[str]:
    """What a reader must know: captures cut short, filters that select nothing, another dtype."""
    sides = {"golden": golden, "my side": target, "the reference": finer}
    for name, side in sides.items():
        if side is not None:
            yield from (f"{name}: {problem}" for problem in side.archive.problems)
            yield from (f"{name}: {text}" for text in _certificates(side))
    ops = {key.op for side in (golden, target) for key in side.archive}
    steps = [key.step for key in golden.archive]
    yield from tap.unmatched(max(steps, default=-1) + 1, ops) if tap != Tap() else ()


def _unseen(rows: Sequence[Row]) -> Iterator[str]:
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
