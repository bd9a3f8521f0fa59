"""The use case: opens both archives, compares them span by span, and puts the outcome together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial as partly
from pathlib import Path

from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.align.renaming import Renaming
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import place
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.own_metrics import loadable
from dumpcmp.comparing.placing import device_named, plain_arithmetic, workers_for
from dumpcmp.comparing.proposals import mapping_by_values
from dumpcmp.comparing.remarks import caveats, facts_to_know, missing_of
from dumpcmp.comparing.same_steps import SameStep
from dumpcmp.comparing.shortcuts import said_of
from dumpcmp.comparing.showing import Showing
from dumpcmp.comparing.side import OpenRun, ask_anew, open_run
from dumpcmp.comparing.span_comparison import Replaying, SpanComparison
from dumpcmp.comparing.spans import Span, span_of, spans
from dumpcmp.comparing.stepping import counted_steps
from dumpcmp.comparing.uncompared import alone, not_compared
from dumpcmp.engines.engine import Workers, is_elsewhere, whole_path, workers_of
from dumpcmp.judge import (
    Checker,
    Fp64Checker,
    ReferenceChecker,
    checker_named,
)
from dumpcmp.nouns.errors import CheckError, SelectionError
from dumpcmp.nouns.outcome import Outcome
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
    token_offset: int | None = None,
    layouts: str | Sequence[str] = (),
    checker: Checker | str | None = None,
    metrics: str | Sequence[str] = (),
    replay: str = Replaying.AUTO,
    allow: str | Sequence[str] = (),
    partial: bool = False,
    verify_digests: bool = False,
    closely: int | str = 0,
    jobs: int = 1,
    device: str = "cpu",
    executor: Workers | None = None,
    progress: Tell | None = None,
) -> Outcome:
    """Compare the archive `target` with `golden`, value by value, and find the first divergence.

        outcome = dumpcmp.compare("d1", "d2")
        print(outcome.first_divergence)
        outcome.to_pandas()

    `reference` is an archive of golden in higher precision. `layers` and `tokens` select as in
    `dumpcmp.capture`; `token_offset` is added to the target's tokens, and is found from what the
    steps were given where it is not stated. `layouts` say how a partitioned run's values lie over
    its mesh: files, or lines such as ``"layers.*.o=b s h[tp:partial]"``. `replay` says which ops
    are run again in float64 on what the target was given: ``"auto"`` those that need it, ``"all"``,
    or ``"off"``. `allow` names shortcuts in arithmetic that the target took, such as ``"tf32"``,
    besides those that its run had leave to take, and levels that it is quantised to, such as
    ``"int8"``. A `checker` may be given by its name, such as ``"exact"``. Runs that are known not
    to be whole are never called the same, unless `partial` says that this is known. What is
    measured is held against its digest; `verify_digests` does so with values, too, that need not
    be read because their digests are the same. `closely` is the number of rows that the outcome's
    `background` looks at closely, the first root before other roots and the worst rows, or a glob
    over their ops. `executor`, or `jobs` processes, do the measuring, or a `device` such as
    ``"cuda"``; the outcome is the same.
    An executor is any of concurrent.futures, a Dask Client, or a name as for ``--executor``.
    """
    ask_anew()
    tap = make_tap(tokens, layers)
    stated = read_stated([layouts] if isinstance(layouts, str) else layouts)
    if is_elsewhere(executor):  # of workers that may stand elsewhere
        golden, target = whole_path(golden), whole_path(target)
        reference = reference and whole_path(reference)
    archives = Archive(golden), Archive(target)
    counting = counted_steps(*archives, token_offset)
    ours = open_run(archives[0], tap, declared=stated.golden)
    theirs = open_run(archives[1], tap, counting, stated.target)
    finer = open_run(reference, tap) if reference is not None else None
    proposal = mapping_by_values(*archives) if mapping is None else None
    renaming = Renaming() if mapping is None else read_mapping(place(mapping))
    comparing = SpanComparison(
        renaming=proposal.renaming if proposal else renaming,
        counting=counting,
        rule=_chosen(checker, finer),
        metrics=loadable([metrics] if isinstance(metrics, str) else metrics),
        replaying=_replaying(replay),
        allow=allow,
        verify_digests=verify_digests,
        showing=Showing(closely),
        device=device_named(device),
    )
    opened = [run.archive.path for run in (ours, theirs, finer) if run is not None]
    made = workers_of(executor, jobs, roots=opened, local=partly(workers_for, device=device))
    with plain_arithmetic(device), made as workers:
        for span in spans(ours, theirs, finer, comparing.sorts_out(ours, theirs, finer)):
            if not isinstance(span, SameStep):
                _compare_span(comparing, span, workers, progress)
            elif comparing.history.agrees_on(span.weights):
                comparing.take(span, progress)
            else:
                _compare_span(comparing, span_of(span), workers, progress)
    rows, noted = comparing.gathered.rows, comparing.noted
    remarks = [
        *noted.samples(),
        *counting.remarks,
        *(proposal.remarks if proposal else ()),
        *noted.laps(),
        *noted.idle_calls(),
        *caveats(comparing.rule, rows),
        *noted.own_metrics(),
        *facts_to_know(tap, ours, theirs, finer),
        *comparing.renaming.idle(*noted.ops),
        *stated.idle(ours.ops, theirs.ops),
        *said_of(noted.shortcuts),
        *(comparing.programs.remarks if comparing.programs else ()),
        *noted.levels(),
        *comparing.effects.weights.remarks(),
        *alone(rows),
        *not_compared(rows),
    ]
    missing = () if partial else (
        *missing_of("golden", ours), *missing_of("my side", theirs), *comparing.effects.missing
    )  # fmt: skip
    background = comparing.showing.background(ours.archive, theirs.archive)
    outcome = comparing.gathered.outcome(remarks, missing)
    return replace(outcome, background=background, num_sampled=noted.num_sampled)


def _compare_span(
    comparing: SpanComparison, span: Span, workers: Executor, progress: Tell | None
) -> None:
    """Compare one span in the light of those before; torch runs its calls, which takes time."""
    from dumpcmp.comparing.questions.asking_all import compare_span

    compare_span(comparing, span, workers, progress)


def _chosen(checker: Checker | str | None, finer: OpenRun | None) -> Checker:
    if isinstance(checker, str):
        checker = checker_named(checker, {})
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
