"""The use case: open both archives, align, measure in any executor, judge, and find the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from dumpcmp.align.match import Match, match
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.align.mesh.deliveries import without_collectives
from dumpcmp.align.renaming import Renaming, read_mapping
from dumpcmp.comparing.blame import blame
from dumpcmp.comparing.judging import fit_limits, judged, repeats
from dumpcmp.comparing.kernels import with_suspects
from dumpcmp.comparing.partitioned import (
    COLLECTIVE,
    agreed,
    second_look,
    traffic_at,
    unlike,
    with_collectives,
)
from dumpcmp.comparing.side import Side, archive_at, open_side
from dumpcmp.comparing.task import Held, Measured, Task, measure_delivery, measure_task
from dumpcmp.execute import executor_for, run_each
from dumpcmp.judge import Checker, ReferenceChecker
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Closeness
from dumpcmp.nouns.selection import Tap, make_tap

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
    layouts: str | Sequence[str] = (),
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
    `dumpcmp.capture`. `layouts` say how a partitioned run's values lie over its mesh: files, or
    lines such as ``"layers.*.o=b s h[tp:partial]"``. `executor`, or `jobs` processes, do the
    measuring; the outcome is the same.
    """
    traffic_at.cache_clear()
    archive_at.cache_clear()  # a path may hold another run than it did at the last comparison
    tap = make_tap(tokens, layers)
    stated = read_stated([layouts] if isinstance(layouts, str) else layouts)
    ours = open_side(golden, tap, declared=stated.golden)
    theirs = open_side(target, tap, token_offset, stated.target)
    finer = open_side(reference, tap) if reference is not None else None
    renaming = read_mapping(Path(mapping)) if mapping is not None else Renaming()
    checker = checker or ReferenceChecker()
    matches = _matches(ours, theirs, renaming, token_offset)
    tasks = _tasks(matches, ours, theirs, finer, checker.closeness)
    with nullcontext(executor) if executor is not None else executor_for(jobs) as workers:
        measured = _measure(tasks, workers, progress)
        measured |= _measure(second_look(tasks, measured), workers)
        measured |= _measure_deliveries(matches, ours, theirs, workers)
    for i, first in _again(matches, ours, theirs).items():
        measured[i] = measured[first]
    for i, judgement in list(unlike(matches, measured)):
        measured[i] = replace(measured[i], judgement=judgement)
    rows = agreed(judged(matches, measured, ours, theirs, checker))
    found = with_suspects(blame(rows, ours.links(), theirs.links()), theirs)
    return Outcome(found.rows, found.roots, tuple(_remarks(tap, ours, theirs, finer)))


def _matches(golden: Side, target: Side, renaming: Renaming, token_offset: int) -> list[Match]:
    """The pairs of values; the collectives of partitioned runs beside what they moved."""
    if not (golden.is_partitioned or target.is_partitioned):
        return match(golden.listing, target.listing, renaming, token_offset)
    ours, theirs = without_collectives(golden.listing), without_collectives(target.listing)
    matches = match(ours, theirs, renaming, token_offset)
    return with_collectives(matches, golden.listing, target.listing)


def _again(matches: Sequence[Match], golden: Side, target: Side) -> dict[int, int]:
    """The matches of values that appeared before; not those that the user states a layout for."""
    found = repeats(matches, golden.links(), target.links())
    stated = golden.facts.declared, target.facts.declared

    def is_stated(match: Match) -> bool:
        keys = (match.golden, match.target)
        return any(key and said.layout_of(key) for key, said in zip(keys, stated, strict=True))

    return {i: first for i, first in found.items() if not is_stated(matches[i])}


def _measure_deliveries(
    matches: Sequence[Match], golden: Side, target: Side, executor: Executor
) -> dict[int, Measured]:
    """Measure the values of collectives that have no partner by what the ranks gave to them."""
    alone: dict[int, tuple[Path, tuple[Key, ...]]] = {}
    for i, pair in enumerate(matches):
        key, side = (pair.target, target) if pair.target else (pair.golden, golden)
        if pair.by == COLLECTIVE and key is not None and not (pair.golden and pair.target):
            keys = dict.fromkeys(record.key for record in side.listing.values[key])
            alone[i] = side.path, tuple(keys)
    return dict(zip(alone, run_each(measure_delivery, alone.values(), executor), strict=True))


def _tasks(
    matches: Sequence[Match], golden: Side, target: Side, finer: Side | None, closeness: Closeness
) -> dict[int, Task]:
    """The work on each pair, by its place in `matches`; a value that repeats is measured once."""
    again = _again(matches, golden, target)
    beside = _partners(golden, finer) if finer else {}
    partitioned = golden.is_partitioned or target.is_partitioned
    limits = fit_limits(matches, golden, target) if partitioned else {}
    tasks = {}
    for i, pair in enumerate(matches):
        if pair.golden is None or pair.target is None or i in again:
            continue
        other = beside.get(pair.golden)
        tasks[i] = Task(
            Held(golden.path, golden.listing.values[pair.golden], golden.facts),
            Held(target.path, target.listing.values[pair.target], target.facts),
            closeness,
            Held(finer.path, finer.listing.values[other]) if finer and other else None,
            limits.get(i, 0.0),
        )
    return tasks


def _partners(golden: Side, finer: Side) -> dict[Key, Key]:
    """Golden's values and what they are in the reference."""
    pairs = match(golden.listing, finer.listing)
    return {pair.golden: pair.target for pair in pairs if pair.golden and pair.target}


def _measure(
    tasks: dict[int, Task], executor: Executor, progress: Progress | None = None
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


def _certificates(side: Side) -> set[str]:
    """Whether a compiled run was shown to be what it would have been without its capture."""
    stated = [facts.get("run", {}).get("certificate") for facts in side.archive.run.values()]
    return {str(words.get("text", "")) for words in stated if isinstance(words, dict)}


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
