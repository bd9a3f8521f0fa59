"""From two archives to the folder of a repro: compare, cut out, shrink, write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import is_url
from dumpcmp.comparing import compare
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.case import ReproCase, ShownBy
from dumpcmp.reproducing.folder import write_repro
from dumpcmp.reproducing.guilty import Guilty, guilty_row
from dumpcmp.reproducing.random_values import without_values
from dumpcmp.reproducing.script import script_of, stored_values
from dumpcmp.reproducing.shrinking import shrunk
from dumpcmp.reproducing.trials import Trials, trying


@dataclass(frozen=True, slots=True)
class Repro:
    """A folder that shows a fault alone."""

    path: Path
    case: ReproCase
    num_lines: int
    nbytes: int  # of all its files

    @property
    def is_fresh(self) -> bool:
        """Whether the code itself goes wrong in a new process, and not only what was recorded."""
        return self.case.shown is ShownBy.FRESH

    @property
    def command(self) -> str:
        """What runs its script, which fails."""
        return self.case.command.replace("repro.py", str(self.path / "repro.py"))

    @property
    def text(self) -> str:
        """What it is, in a line."""
        how = "fails in a new process" if self.is_fresh else "holds what the run recorded"
        return (
            f"{self.case.kind.value}: {self.case.place}; {how}; "
            f"{self.num_lines} lines, {readable(self.nbytes)}"
        )


def repro(
    mine: str | Path,
    golden: str | Path,
    key: str = "",
    *,
    path: str | Path,
    values: bool = True,
    overwrite: bool = False,
    outcome: Outcome | None = None,
    **comparison: Any,
) -> Repro:
    """Cut the guilty op of a comparison out into a folder at `path` that shows the fault alone.

    `key` is an op or a value, as for ``dumpcmp explain``; without one it is the first divergence.
    Without `values` all numbers of the run are replaced by random ones, if these show the fault.
    An `outcome` that is at hand spares the comparison; `comparison` are options of `compare`.

        dumpcmp.repro("d2", "d1", path="repro")
    """
    if is_url(path):
        raise DumpcmpError(f"{path}: a repro is tried where it is written", hint="give a directory")
    path = Path(path)
    if path.exists() and not overwrite:
        raise DumpcmpError(
            f"{path} is there already", hint="replace it: --overwrite, or overwrite=True"
        )
    found = compare(golden, mine, closely=key or 1, **comparison) if outcome is None else outcome
    guilty = Guilty(found, guilty_row(found, key), Archive(golden), Archive(mine))
    with trying() as trials:
        case = shrunk(_shown(guilty, trials), trials)
        case = case if values else without_values(case, trials)
    with TemporaryDirectory(prefix=".draft-", dir=_parent(path)) as room:
        draft = Path(room, path.name)
        draft.mkdir()
        write_repro(draft, case, guilty.mine, _size(case))
        if path.exists():
            shutil.rmtree(path)
        draft.replace(path)
    nbytes = sum(file.stat().st_size for file in path.iterdir())
    return Repro(path, case, len(script_of(case).splitlines()), nbytes)


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent


def _shown(guilty: Guilty, trials: Trials) -> ReproCase:
    """The first case whose code goes wrong in a new process, or else one of what was recorded."""
    fallback: ReproCase | None = None
    for case in guilty.cases():
        fresh = trials.with_right_op(replace(case, shown=ShownBy.FRESH))
        if fresh is not None:
            return fresh
        fallback = fallback or trials.with_right_op(replace(case, shown=ShownBy.RECORDED))
    if fallback is None:
        raise Unreplayable(
            f"{guilty.row.key} was cut out, but the script does not show the fault: "
            f"{_last_line(trials.log)}",
            hint="name another value that fails, such as one that follows from it",
        )
    return fallback


def _last_line(log: str) -> str:
    return (log.strip().splitlines() or ["it printed nothing"])[-1][:200]


def _size(case: ReproCase) -> str:
    count = sum(value.numel() for value in stored_values(case).values())
    return f"{count:,} numbers"
