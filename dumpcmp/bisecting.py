"""Finds the step in which two programs part, without keeping what all other steps computed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpcmp.archive.stores.urls import is_url
from dumpcmp.comparing import compare
from dumpcmp.nouns.effects import Effect, effect_of
from dumpcmp.nouns.errors import ArchiveError, CaptureError, SelectionError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bisected:
    """What bisecting came to: the step, and the comparison of the runs that have it whole."""

    outcome: Outcome  # of that step and the one before, whole; of Summaries where none differs
    step: int | None  # the first in which anything fails
    golden: Path  # the archives that were compared last
    mine: Path


@dataclass(frozen=True, slots=True)
class _Programs:
    """Both programs, and how each of their runs is dumped. A run is a process of its own."""

    golden: Sequence[str]
    mine: Sequence[str]
    room: Path
    options: Sequence[str]
    say: Say

    def dumped(self, name: str, tokens: str, *options: str) -> tuple[Path, Path]:
        """Run both, record `tokens` of them, or all, and give the archives."""
        said = f"tokens {tokens}" if tokens else "all tokens"
        chosen = ("--token", tokens) if tokens else ()
        made = []
        for side, words in (("golden", self.golden), ("mine", self.mine)):
            self.say(f"running {shlex.join(words)} ({side}): {said}, {name}")
            path = self.room / f"{side}-{name}"
            self._run(path, words, (*self.options, *chosen, *options))
            made.append(path)
        return made[0], made[1]

    def _run(self, path: Path, words: Sequence[str], options: Iterable[str]) -> None:
        command = [sys.executable, "-m", "dumpcmp", "dump", "--path", str(path), *options, *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CaptureError(
                f"{shlex.join(words)} was not recorded: {_reason(done.stderr)}",
                hint=f"run it by itself first: {shlex.join(['dumpcmp', *command[3:]])}",
            )


def bisect(
    golden: Sequence[str],
    mine: Sequence[str],
    room: Path,
    *,
    every: int = 1,
    seed: int | None = None,
    backward: bool = True,
    say: Say = lambda _: None,
    **comparison: Any,
) -> Bisected:
    """Run both programs with Summaries, and once more with all values of the step where they part.

    A program is the words of a command line after ``python``: a script with its arguments, or
    ``-m``, a module and its arguments. With `every` the first runs look at each Nth step only, and
    others narrow it down. The archives are in `room`.
    """
    if is_url(room):
        raise SelectionError(f"{room} is no directory of this machine", hint="give another --path")
    if room.exists() and any(room.iterdir()):
        raise ArchiveError(
            f"{room} is not empty", hint="give another --path; nothing is replaced here"
        )
    for words in (golden, mine):
        if not words[0].startswith("-") and not Path(words[0]).is_file():
            raise SelectionError(f"{words[0]} is not a file", hint="give a script, or -m MODULE")
    stated = ("--seed", str(seed)) if seed is not None else ()
    grads = ("--backward",) if backward else ()
    programs = _Programs(golden, mine, room, (*stated, *grads), say)
    kept = "--keep", "summary"
    pair = programs.dumped("summaries", "", *kept, "--every", str(every))
    outcome = compare(*pair, **comparison)
    step = first_failing(outcome)
    if step is not None and every > 1:
        coarse, first = pair, max(0, step - every + 1)
        pair = programs.dumped("nearer", f"{first}-{step}", *kept)
        _check_repeats(coarse, pair, step)
        outcome = compare(*pair, **comparison)
        step = first_failing(outcome)
    if step is None:
        return Bisected(outcome, None, *pair)
    tokens = f"{step - 1},{step}" if step else "0"
    if _is_setting(outcome.first_divergence):
        return Bisected(compare(*pair, **(comparison | {"tokens": tokens})), step, *pair)
    whole = programs.dumped("whole", tokens)
    _check_repeats(pair, whole, step)
    told = compare(*whole, **comparison)
    if (
        told.passed
    ):  # what of the Summaries differs does not show there: it was earlier, or they err
        return Bisected(outcome, step, *pair)
    return Bisected(told, step, *whole)


def first_failing(outcome: Outcome) -> int | None:
    """The first step in which anything fails; None where nothing does."""
    return min((row.key.step for row in outcome.failures), default=None)


def _is_setting(row: Row | None) -> bool:
    """Whether what differs first is what steers training, of which a Summary leaves nothing out."""
    return row is not None and effect_of(row.key.op) is Effect.TRAINING


def _check_repeats(before: tuple[Path, Path], now: tuple[Path, Path], step: int) -> None:
    """See that both programs did the same at `step` when they ran again.

    How a run ended stands at the last token that it recorded, which is another one in each.
    """
    for name, first, again in zip(("golden", "mine"), before, now, strict=True):
        same = compare(first, again, tokens=str(step))
        if same.failures or not same.compared:
            said = f": {same.failures[0].key}, {same.failures[0].reason}" if same.failures else ""
            raise CaptureError(
                f"{name} computed something else at token {step} when it ran again{said}",
                hint="make its runs repeatable: --seed 0, and one thread (OMP_NUM_THREADS=1)",
            )


def parsed(program: str, name: str) -> list[str]:
    """The words of a program, as a shell would have them; a file's name is one word."""
    if Path(program).is_file():
        return [program]
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise SelectionError(f"{name} {program!r} cannot be read: {error}") from error
    if not words:
        raise SelectionError(f"{name} is empty", hint="give a script and its arguments in quotes")
    return words


def _reason(text: str) -> str:
    """Why a dump failed, of all that it has printed: what the program raised, or what we say."""
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [at for at, line in enumerate(lines) if line.startswith("dumpcmp: ")]
    if not ours:
        return lines[-1] if lines else "it said nothing"
    return lines[ours[0] - 1] if ours[0] else lines[0].removeprefix("dumpcmp: ")
