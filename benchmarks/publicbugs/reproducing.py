"""Show without any tool that a bug is real here: its results are wrong, its twin's are right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.publicbugs.corpus import Bug, Program, golden_of, target_of
from benchmarks.publicbugs.running import run

Arrays = list[list[NDArray[np.float64]]]  # by rank, then by result


@dataclass(frozen=True)
class Seen:
    """What is right for the bug and for its twin, and how far the bug is off."""

    right: Arrays
    twin_right: Arrays
    error: float


def results_of(program: Program, room: Path) -> Arrays:
    path = room / f"result-{program.label}"
    ran = run(program.arguments, room, program.ranks, {"PUBLICBUGS_RESULT": str(path)})
    assert ran.status == 0, f"{program.bug} {program.file} ended with {ran.status}:\n{ran.stderr}"
    return read(path, program.ranks)


def read(path: Path, ranks: int) -> Arrays:
    every = []
    for rank in range(ranks):
        with np.load(f"{path}.{rank}.npz") as held:
            every.append([held[name] for name in held.files])
    return every


def error_of(mine: Arrays, right: Arrays) -> float:
    """The largest error of any rank, relative to the largest right value of that result.

    One right result stands for all ranks. What has another shape, or is not finite where right is,
    is infinitely wrong.
    """
    whole = right if len(right) == len(mine) else right * len(mine)
    pairs = [pair for one, other in zip(mine, whole, strict=True) for pair in _zip(one, other)]
    return max((_distance(a, b) for a, b in pairs), default=0.0)


def _zip(
    one: list[NDArray[np.float64]], other: list[NDArray[np.float64]]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    assert len(one) == len(other), f"{len(one)} results against {len(other)}"
    return list(zip(one, other, strict=True))


def _distance(mine: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    if mine.shape != right.shape:
        return float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        same = (mine == right) | (np.isnan(mine) & np.isnan(right))
        off = np.where(same, 0.0, np.abs(mine - right))
    off = np.where(np.isnan(off), np.inf, off)
    finite = np.abs(right[np.isfinite(right)])
    scale = float(finite.max()) if finite.size else 0.0
    return float(off.max()) / (scale or 1.0) if off.size else 0.0


def reproduce(bug: Bug, room: Path) -> Seen:
    right = results_of(golden_of(bug, "bug"), room)
    twin_right = right
    if golden_of(bug, "fixed") != golden_of(bug, "bug"):
        twin_right = results_of(golden_of(bug, "fixed"), room)
    error = error_of(results_of(target_of(bug, "bug"), room), right)
    twin = error_of(results_of(target_of(bug, "fixed"), room), twin_right)
    between = error_of(twin_right, right)
    said = (
        f"{bug.name}: the bug is {error:.3g} off, its twin {twin:.3g}, what is right {between:.3g}"
    )
    assert error > 4 * bug.tolerance, f"{said}: the bug is not there"
    assert max(twin, between) <= bug.tolerance, f"{said}: the twin is not right"
    return Seen(right, twin_right, error)
