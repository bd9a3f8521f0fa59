"""Compares step by step: a run that is still going on, or one that may end at its first fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dumpcmp.archive.ending import finished_steps, has_ended
from dumpcmp.archive.paths import rank_directories
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.comparison import compare
from dumpcmp.comparing.stepping import counted_steps, is_count_settled
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.selection import make_tap

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 600.0  # how long it waits for a run to begin

Told = Callable[[list[int], Outcome], None]


def compare_by_steps(
    golden: Path,
    target: Path,
    *,
    follow: bool = False,
    stop_at_first: bool = False,
    tell: Told = lambda _steps, _outcome: None,
    **options: Any,
) -> Outcome:
    """Compare the steps of `target` as they are there, and in the end all of it.

    With `stop_at_first` the outcome of the first steps in which anything fails is the answer. With
    `follow` the run may still be going on: `tell` is told what its finished steps came to.
    `options` are those of `compare`. Steps are numbered as golden counts them.
    """
    tap = make_tap(options.get("tokens"), options.get("layers"))
    for step in _as_they_come(golden, target, follow, options.get("token_offset")):
        if not tap.selects_step(step):
            continue
        outcome = compare(golden, target, **options | {"tokens": [step], "partial": True})
        tell([step], outcome)
        if stop_at_first and outcome.failures:
            return outcome
    return compare(golden, target, **options)


def _as_they_come(
    golden: Path, target: Path, follow: bool, token_offset: int | None
) -> Iterator[int]:
    """Golden's numbers of the target's steps as they are finished; of a run that has ended, all."""
    done: set[int] = set()
    if follow:
        _await(target)
    while True:
        ended = not follow or has_ended(target)
        finished = finished_steps(target)
        for step in _in_golden_terms(golden, target, finished, token_offset, ended):
            if step not in done:
                done.add(step)
                yield step
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _in_golden_terms(
    golden: Path, target: Path, finished: Sequence[int], token_offset: int | None, ended: bool
) -> list[int]:
    """Golden's numbers of steps that every model of the target has finished.

    None is known of a run that goes on until what its steps were given tells how it counts them:
    a warm-up is no step of golden's.
    """
    if not finished:
        return []
    archives = Archive(golden), Archive(target)
    if not ended and not is_count_settled(*archives, token_offset):
        return []
    counting = counted_steps(*archives, token_offset)
    found = [
        {counting.in_golden_terms(model, step) for step in finished} for model in archives[1].models
    ]
    return sorted(step for step in set.intersection(*found) if step >= 0)


def has_begun(target: Path) -> bool:
    """Whether a run has begun to write at `target`."""
    return bool(rank_directories(target))


def _await(target: Path) -> None:
    """Wait until a run has begun to write at `target`, for a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not has_begun(target):
        if time.monotonic() > deadline:
            raise ArchiveError(
                f"no run began to write {target} in {PATIENCE_SECONDS:.0f} seconds",
                hint="start the dump first, or beside this command",
            )
        time.sleep(POLL_SECONDS)
