"""Whether a run that writes an archive has ended, and which of its steps are whole by now."""

from __future__ import annotations

from pathlib import Path

from dumpcmp.archive.paths import (
    models_in,
    parts_in,
    rank_directories,
    read_run,
    steps_in,
    writer_lives,
)
from dumpcmp.archive.rewrite import is_sealed


def has_ended(root: Path) -> bool:
    """Whether every rank's capture has ended, or will never go on."""
    ranks = rank_directories(root)
    if not ranks or len(ranks) < max(world_size for world_size, _ in ranks.values()):
        return False
    runs = {directory: read_run(directory) for directory in ranks}
    return all(run.get("ended") or not writer_lives(run, where) for where, run in runs.items())


def finished_steps(root: Path) -> list[int]:
    """The steps that every rank has written whole: a later one has begun, and nothing is open."""
    found: list[set[int]] = []
    for directory in rank_directories(root):
        for place in models_in(directory):
            steps = steps_in(place)
            last = max(steps, default=-1)
            whole = {step for step, held in steps.items() if step < last and _is_whole(held)}
            found.append(whole)
    return sorted(set.intersection(*found)) if found else []


def _is_whole(directory: Path) -> bool:
    parts = parts_in(directory)
    return bool(parts) and all(is_sealed(part) for part in parts.values())
