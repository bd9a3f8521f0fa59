"""Asks about the start and the program of every step that two archives have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dumpcmp.archive.read.reader import Archive
from dumpcmp.shadows.proving import Proof, StepOfModel, StepProof
from dumpcmp.shadows.starting import Before


def prove(golden: str | Path, target: str | Path) -> Proof:
    ours, theirs = Archive(golden), Archive(target)
    proof = Proof()
    before: Before | None = None
    for pair in _steps(ours, theirs):
        before = StepProof(ours, theirs, proof, before).ask(*pair)
    return proof


def _steps(golden: Archive, target: Archive) -> Iterator[tuple[StepOfModel, StepOfModel]]:
    """The steps of both, models in the order in which they ran."""
    for ours, theirs in zip(golden.models, target.models, strict=False):
        mine = set(target.steps(theirs))
        for step in golden.steps(ours):
            if step in mine:
                yield (ours, step), (theirs, step)
