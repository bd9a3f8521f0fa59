"""The use case, as a straight line: pair, lay out, measure, replay, judge, blame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from dumpcmp.comparing.remarks import caveats, facts_to_know, idle_calls, missing_of, one_sided
from dumpcmp.comparing.requests import Asking, spared
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
)
from dumpcmp.nouns.errors import CheckError, SelectionError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Judgement, Row
from dumpcmp.nouns.selection import make_tap

PathLike = str | Path


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
        *idle_calls(clues.calls, rows),
        *caveats(rule, rows),
        *said_of_own(measured),
        *facts_to_know(tap, ours, theirs, finer),
    ]
    remarks += renaming.idle(
        *({key.op.plain for key in side.listing.values} for side in (ours, theirs))
    )
    remarks += [*said_of(shortcuts), *one_sided(rows)]
    roots = in_order(row for row in rows if row.root)
    missing = () if partial else (*missing_of("golden", ours), *missing_of("my side", theirs))
    return Outcome(tuple(rows), tuple(roots), tuple(remarks), missing)


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
