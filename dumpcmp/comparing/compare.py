"""The use case: open both archives, align, measure in any executor, judge, and find the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path

from dumpcmp.align.match import Match, match
from dumpcmp.align.names import Renaming, read_mapping
from dumpcmp.blame import blame
from dumpcmp.capture.tap import Tap, make_tap
from dumpcmp.comparing.judging import judged, repeats
from dumpcmp.comparing.side import Side, archive_at, open_side
from dumpcmp.comparing.task import Held, Measured, Task, measure_task
from dumpcmp.execute import executor_for, run_each
from dumpcmp.judge import Checker, ReferenceChecker, RoundingChecker
from dumpcmp.outcome import Closeness, Outcome
from dumpcmp.record import Key

Progress = Callable[[int, int], None]  # bytes measured so far, bytes in all
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
    checker: Checker | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Compare the archive `target` with `golden`, value by value, and find the first divergence.

        outcome = dumpcmp.compare("d1", "d2")
        print(outcome.first_divergence)
        outcome.to_pandas()

    `reference` is an archive of golden in higher precision. `layers` and `tokens` select as in
    `dumpcmp.capture`. `executor`, or `jobs` processes, do the measuring; the outcome is the same.
    """
    archive_at.cache_clear()  # a path may hold another run than it did at the last comparison
    tap = make_tap(tokens, layers)
    ours, theirs = open_side(golden, tap), open_side(target, tap, token_offset)
    finer = open_side(reference, tap) if reference is not None else None
    renaming = read_mapping(Path(mapping)) if mapping is not None else Renaming()
    checker = checker or (ReferenceChecker() if finer else RoundingChecker())
    matches = match(ours.listing, theirs.listing, renaming, token_offset)
    tasks = _tasks(matches, ours, theirs, finer, checker.closeness)
    with nullcontext(executor) if executor is not None else executor_for(jobs) as workers:
        measured = _measure(tasks, workers, progress)
    for i, first in repeats(matches, ours.links(), theirs.links()).items():
        measured[i] = measured[first]
    rows = judged(matches, measured, ours, theirs, checker)
    found = blame(rows, ours.links(), theirs.links())
    return Outcome(found.rows, found.roots, tuple(_remarks(tap, ours, theirs, finer)))


def _tasks(
    matches: Sequence[Match], golden: Side, target: Side, finer: Side | None, closeness: Closeness
) -> dict[int, Task]:
    """The work on each pair, by its place in `matches`; a value that repeats is measured once."""
    again = repeats(matches, golden.links(), target.links())
    beside = _partners(golden, finer) if finer else {}
    tasks = {}
    for i, pair in enumerate(matches):
        if pair.golden is None or pair.target is None or i in again:
            continue
        other = beside.get(pair.golden)
        tasks[i] = Task(
            Held(golden.path, golden.listing.values[pair.golden]),
            Held(target.path, target.listing.values[pair.target]),
            closeness,
            Held(finer.path, finer.listing.values[other]) if finer and other else None,
        )
    return tasks


def _partners(golden: Side, finer: Side) -> dict[Key, Key]:
    """Golden's values and what they are in the reference."""
    pairs = match(golden.listing, finer.listing)
    return {pair.golden: pair.target for pair in pairs if pair.golden and pair.target}


def _measure(
    tasks: dict[int, Task], executor: Executor, progress: Progress | None
) -> dict[int, Measured]:
    """Measure all pairs; tell `progress` after each how many bytes are done."""
    total = sum(task.nbytes for task in tasks.values())
    done, measured = 0, {}
    results = run_each(measure_task, tasks.values(), executor)
    for (i, task), result in zip(tasks.items(), results, strict=True):
        measured[i] = result
        done += task.nbytes
        if progress:
            progress(done, total)
    return measured


def _remarks(tap: Tap, golden: Side, target: Side, finer: Side | None) -> Iterator[str]:
    """What a reader must know: captures cut short, filters that select nothing, another dtype."""
    sides = {"golden": golden, "my side": target, "the reference": finer}
    for name, side in sides.items():
        if side is not None:
            yield from (f"{name}: {problem}" for problem in side.archive.problems)
    ops = {key.op for side in (golden, target) for key in side.archive}
    steps = [key.step for key in golden.archive]
    yield from tap.unmatched(max(steps, default=-1) + 1, ops) if tap != Tap() else ()
