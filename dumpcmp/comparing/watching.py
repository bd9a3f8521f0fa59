"""Compares step by step: a run that is still going on, or one that may end at its first fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dumpcmp.archive.ending import finished_steps, has_ended
from dumpcmp.archive.paths import rank_directories
from dumpcmp.comparing.comparison import compare
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
    `options` are those of `compare`.
    """
    tap = make_tap(options.get("tokens"), options.get("layers"))
    offset = options.get("token_offset", 0)
    for steps in _as_they_come(target, follow):
        chosen = [step + offset for step in steps if tap.selects_step(step + offset)]
        if not chosen:
            continue
        outcome = compare(golden, target, **options | {"tokens": chosen, "partial": True})
        tell(chosen, outcome)
        if stop_at_first and outcome.failures:
            return outcome
    return compare(golden, target, **options)


def _as_they_come(target: Path, follow: bool) -> Iterator[list[int]]:
    """Steps of a run as they are finished; of one that has ended, one after the other."""
    done: set[int] = set()
    if follow:
        _await(target)
    while True:
        ended = not follow or has_ended(target)
        fresh = [step for step in finished_steps(target) if step not in done]
        for step in fresh:
            yield [step]
        done |= set(fresh)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _await(target: Path) -> None:
    """Wait until a run has begun to write at `target`, for a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not rank_directories(target):
        if time.monotonic() > deadline:
            raise ArchiveError(
                f"no run began to write {target} in {PATIENCE_SECONDS:.0f} seconds",
                hint="start the dump first, or beside this command",
            )
        time.sleep(POLL_SECONDS)
