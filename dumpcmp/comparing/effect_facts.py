"""What run.json says of effects: whether a run records them, where it ended, how it began."""

from __future__ import annotations

from typing import Any

from dumpcmp.archive.read.reader import Archive


def records_effects(archive: Archive) -> bool:
    """Whether the run recorded what its models returned: earlier versions did not."""
    runs = [facts.get("run", {}) for facts in archive.run.values()]
    return bool(runs) and all(isinstance(run.get("effects"), list) for run in runs)


def last_step(archive: Archive, model: str, recorded: int) -> int:
    """The last step of `model` that ran, which may have come after the last that is `recorded`."""
    runs = [facts.get("run", {}).get("last_steps") for facts in archive.run.values()]
    told = [run[model] for run in runs if isinstance(run, dict) and isinstance(run.get(model), int)]
    return max(told, default=recorded)


def first_generators(archive: Archive, rank: int) -> dict[str, Any]:
    """The generators of a rank as its capture began: seed and state of each."""
    found = archive.run.get(rank, {}).get("run", {}).get("generators")
    return found if isinstance(found, dict) else {}
