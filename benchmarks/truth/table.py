"""The truth table: benign pairs that alarm, and planted faults that are named, or are not."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.tables import Table
from benchmarks.truth import telling
from benchmarks.truth.corpus import ANSWERS, Broken, Case, Goldens, Part, benign_of, found_of
from benchmarks.truth.models import DTYPES, MODELS, Model
from benchmarks.truth.sixty import older_units

# One model of each kind is struck; all are run unharmed.
STRUCK = ("Llama", "MoE decoder", "state space", "U-Net", "LSTM and gates", "graph attention")
Share = Callable[[], list[Case]]
JOBS = "TRUTH_JOBS"  # processes that share the work; one where it is not set


@dataclass(frozen=True, slots=True)
class Unit:
    """A share of the work: a model in one dtype, unharmed or struck in one way."""

    model: Model
    dtype: str
    way: str
    part: Part
    is_struck: bool

    def __call__(self) -> list[Case]:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as room:
            goldens = Goldens(self.model, self.dtype, Path(room))
            if not self.is_struck:
                return [benign_of(goldens, self.way)]
            return list(found_of(goldens, self.way, self.part))


def units(models: Mapping[str, Model], struck: Sequence[str], part: Part) -> Iterator[Unit]:
    """Every model unharmed in another way, and those of `struck` with every fault of `part`."""
    for turn, model in enumerate(models.values()):
        for nth, dtype in enumerate(DTYPES):
            # a short run has all models and all dtypes, but not each model in each
            if part.is_long or (turn + part.nth) % len(DTYPES) == nth:
                yield Unit(model, dtype, "other BLAS", part, is_struck=False)
            for way in ANSWERS if model.name in struck else ():
                yield Unit(model, dtype, way, part, is_struck=True)


def carried_out(work: Sequence[Share]) -> Iterator[Case]:
    """What all units find, in their order."""
    jobs = int(os.environ.get(JOBS, "1"))
    if jobs == 1:
        for unit in work:
            yield from unit()
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=fresh) as workers:
        for found in workers.map(run_unit, work):
            yield from found


def run_unit(unit: Share) -> list[Case]:
    return unit()


def measured(name: str, work: Sequence[Share], by_kind: bool = True) -> Table:
    """Run the units, write what failed, and count."""
    began = time.monotonic()
    found, listed = telling.written(carried_out(work), name)
    rows = [
        *telling.fault_rows(found, by_kind),
        *telling.compacted_rows(found),
        *telling.benign_rows(found),
    ]
    broken = sum(isinstance(case, Broken) for case in found)
    how = (
        f"{len(found)} cases on CPU in {time.monotonic() - began:.0f} s, {broken} broken. A fault "
        "is detectable where what it introduced is above the rounding bound of a float64 replay at "
        "the time of planting, or where a leaf or a call differs. Counted as exact, near (the "
        "same module), wrong and missed are the detectable ones; a remark tells of a call that is "
        "another where no number differs for it. Fault rows with a false alarm "
        f"name the fault and something else besides. Every failure is listed in {listed}."
    )
    return Table(name, telling.HEADINGS, rows, how)


def table() -> Table:
    return measured("truth", [*older_units(Part()), *units(MODELS, STRUCK, Part())])
