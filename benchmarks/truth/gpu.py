"""The truth table from a CPU to a GPU: sound pairs, and faults planted on the GPU's side."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.tables import Table
from benchmarks.truth import asking, telling
from benchmarks.truth.corpus import (
    Benign,
    Case,
    Found,
    Goldens,
    Part,
    asked_for,
    carried_out,
    faults_of,
    place_of,
    untouched,
)
from benchmarks.truth.models import DTYPES, MODELS
from benchmarks.truth.table import STRUCK
from benchmarks.truth.watching import plainly

WAY = "CPU to GPU"
LIMIT = 450.0  # seconds after which no further case is begun
ONE_OF = 6


def cases(room: Path) -> Iterator[Case]:
    """Sound pairs of all models first, forward and backward; then faults, while there is time."""
    began = time.monotonic()
    goldens = {
        (name, dtype): Goldens(model, dtype, room / f"{number}-{dtype}", device="cuda")
        for number, (name, model) in enumerate(MODELS.items())
        for dtype in DTYPES
    }
    for each in goldens.values():
        each.room.mkdir()
        yield carried_out(f"{place_of(each, WAY)}: nothing planted", partial(_sound, each))
        if time.monotonic() - began > LIMIT:
            return
    for (name, _), each in goldens.items():
        for found in _struck(each) if name in STRUCK else ():
            yield found
            if time.monotonic() - began > LIMIT:
                print("the time is up: the other faults were not planted", file=sys.stderr)
                return


def _sound(goldens: Goldens) -> Benign:
    golden = goldens(True)
    target = goldens.target(untouched, True)
    outcome, seconds = asking.asked(golden, target)
    said, place = asking.said(outcome), place_of(goldens, WAY)
    return Benign(place, *asking.alarms(outcome), outcome.exit_code, said, seconds)


def _struck(goldens: Goldens) -> Iterator[Case]:
    place, part = place_of(goldens, WAY), Part(one_of=ONE_OF)
    for fault in faults_of(goldens.model, goldens.dtype, WAY, goldens.seen()):
        words = f"{place}: {fault.name} at {', '.join(sorted(fault.ops)[:2])}"
        if part.has(words):
            around = partial(fault.plant, answer=plainly)
            found = carried_out(words, partial(asked_for, fault, goldens, around, place, part))
            if fault.certain or fault.found:
                yield found


def table() -> Table:
    if not torch.cuda.is_available():
        return Table("truth-gpu", ["needs"], [["a CUDA device, which this machine does not have"]])
    with tempfile.TemporaryDirectory() as room:
        found, listed = telling.written(cases(Path(room)), "truth-gpu")
    rows = [*telling.fault_rows(found, by_kind=False), *telling.benign_rows(found)]
    num = sum(isinstance(case, Found) for case in found)
    how = (
        f"Golden on CPU, the target on {torch.cuda.get_device_name()}; torch {torch.__version__}, "
        f"Python {platform.python_version()}. {len(found)} cases, {num} of them faults. Failures "
        f"are listed in {listed}:\n\n```\n{telling.failures(found)}```"
    )
    return Table("truth-gpu", telling.HEADINGS, rows, how)
