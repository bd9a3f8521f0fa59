"""The truth table: benign pairs that alarm, and planted faults that are named, or are not."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from benchmarks.tables import Table
from benchmarks.truth import telling
from benchmarks.truth.corpus import ANSWERS, Broken, Goldens, Part, benign_of, found_of
from benchmarks.truth.models import DTYPES, MODELS, Model
from benchmarks.truth.telling import Case

# One model of each kind is struck; all are run unharmed.
STRUCK = ("Llama", "MoE decoder", "state space", "U-Net", "LSTM and gates", "graph attention")


def cases(models: Iterable[Model], struck: Iterable[str], room: Path, part: Part) -> Iterator[Case]:
    """Every model unharmed in another way, and those of `struck` with every fault of `part`."""
    chosen = set(struck)
    for model in models:
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory(dir=room) as here:
                goldens = Goldens(model, dtype, Path(here))
                if part.one_of == 1 or _is_turn(model, dtype):
                    yield benign_of(model, dtype, "other BLAS", goldens)
                for way in ANSWERS if model.name in chosen else ():
                    yield from found_of(model, dtype, way, goldens, part)


def _is_turn(model: Model, dtype: str) -> bool:
    """One dtype of each model, so that a short run has all models and all dtypes."""
    return list(MODELS).index(model.name) % len(DTYPES) == DTYPES.index(dtype)


def measured(name: str, models: Iterable[Model], struck: Iterable[str], part: Part) -> Table:
    """Run the corpus, write what failed, and count."""
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as room:
        found = list(cases(models, struck, Path(room), part))
    listed = telling.written(found, name)
    rows = [
        *telling.fault_rows(found, by_kind=part.one_of == 1),
        *telling.compacted_rows(found),
        *telling.benign_rows(found),
    ]
    broken = sum(isinstance(case, Broken) for case in found)
    how = (
        f"{len(found)} cases on CPU in {time.monotonic() - began:.0f} s, {broken} broken. A fault "
        "is detectable where what it introduced is above the rounding bound of a float64 replay at "
        "the time of planting, or where a leaf or a call differs. Counted as exact, near (the "
        "same module), wrong and missed are the detectable ones. Fault rows with a false alarm "
        f"name the fault and something else besides. Every failure is listed in {listed}."
    )
    return Table(name, telling.HEADINGS, rows, how)


def table() -> Table:
    return measured("truth", MODELS.values(), STRUCK, Part(summaries=True))
