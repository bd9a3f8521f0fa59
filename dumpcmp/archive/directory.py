"""A rank's directory of an archive: made once, never mixed with another run's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dumpcmp.archive.escaping import file_name
from dumpcmp.archive.remains import ring_left_by
from dumpcmp.archive.schema import PART_FILE, RANK_DIRECTORY, RUN_FILE, STEP_DIRECTORY
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import write_whole


def rank_directories(root: Path) -> dict[Path, tuple[int, int]]:
    """The rank directories in `root`, each with its world size and rank, in order of rank."""
    found: dict[Path, tuple[int, int]] = {}
    for path in root.iterdir() if root.is_dir() else ():
        if (match := re.fullmatch(RANK_DIRECTORY, path.name)) and path.is_dir():
            found[path] = int(match["world_size"]), int(match["rank"])
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def now() -> str:
    """The time, as run.json has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RankDirectory:
    """Where one rank of a run writes: ``root/worldsizeW_global_rankR``."""

    def __init__(self, root: Path, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ArchiveError(f"rank {rank} does not exist in a world of {world_size}")
        self.root = root
        self.world_size, self.rank = world_size, rank
        self.path = root / f"worldsize{world_size}_global_rank{rank}"

    def create(self, *, overwrite: bool) -> None:
        """Make the directory; refuse one that another run has filled, unless told to replace it."""
        for other, (world_size, rank) in rank_directories(self.root).items():
            if world_size == self.world_size and rank != self.rank:
                continue
            if not overwrite:
                raise ArchiveError(
                    f"{self.root} already holds a run: {other.name}",
                    hint="choose another path, or replace that run with --overwrite",
                )
            _remove(other)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise ArchiveError(
                f"cannot make {self.path}: {error.strerror}",
                hint="choose a path that can be written to",
            ) from error

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """Replace run.json."""
        write_whole(self.path / RUN_FILE, json.dumps(facts, indent=2, default=str) + "\n")

    def write_text(self, model: str, name: str, text: str) -> None:
        """Write a readable companion of `model`."""
        directory = self.path / file_name(model)
        directory.mkdir(exist_ok=True)
        write_whole(directory / file_name(name), text)

    def step_directory(self, model: str, step: int) -> Path:
        """The directory of a step's parts, made where it is missing."""
        path = self.path / file_name(model) / str(step)
        path.mkdir(parents=True, exist_ok=True)
        return path


def steps_in(directory: Path) -> dict[int, Path]:
    """The directories of steps in a model's `directory` by their number, in order."""
    found = {
        int(path.name): path
        for path in directory.iterdir()
        if re.fullmatch(STEP_DIRECTORY, path.name) and path.is_dir()
    }
    return dict(sorted(found.items()))


def parts_in(directory: Path) -> dict[int, Path]:
    """The parts in a step's `directory` by their number."""
    names = (re.fullmatch(PART_FILE, path.name) for path in directory.iterdir())
    found = {int(match["number"]): directory / match[0] for match in names if match}
    return dict(sorted(found.items()))


def part_name(number: int) -> str:
    """The file name of a step's part `number`."""
    return f"part-{number:04d}.h5"


def _remove(directory: Path) -> None:
    """Remove a rank directory, and the ring that its writer may have left in shared memory."""
    ring = ring_left_by(directory)
    shutil.rmtree(directory)
    if ring is not None:
        ring.unlink(missing_ok=True)
