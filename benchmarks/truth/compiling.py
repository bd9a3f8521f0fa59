"""The truth table of compiled targets: sound compilers, wrong ones, and changed models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.tables import Table
from benchmarks.truth import edits
from benchmarks.truth.corpus import (
    COMPILED,
    Case,
    Goldens,
    Part,
    asked_for,
    benign_of,
    carried_out,
    place_of,
)
from benchmarks.truth.lowered import compiler_faults
from benchmarks.truth.models import DTYPES, MODELS, Model
from benchmarks.truth.planting import Fault
from benchmarks.truth.table import STRUCK, measured
from benchmarks.truth.watching import plainly


@dataclass(frozen=True, slots=True)
class CompiledUnit:
    """A share of the work: a model in one dtype, compiled soundly or with its faults."""

    model: Model
    dtype: str
    part: Part
    is_struck: bool

    def __call__(self) -> list[Case]:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as room:
            goldens = Goldens(self.model, self.dtype, Path(room))
            if not self.is_struck:
                return [benign_of(goldens, COMPILED)]
            return list(self._struck(goldens))

    def _struck(self, goldens: Goldens) -> Iterator[Case]:
        place = place_of(goldens, COMPILED)
        for fault in self._faults(goldens):
            words = f"{place}: {fault.name} at {', '.join(sorted(fault.ops)[:2])}"
            around = partial(fault.plant, answer=None)
            found = carried_out(words, partial(asked_for, fault, goldens, around, place, self.part))
            if fault.certain or fault.found:
                yield found

    def _faults(self, goldens: Goldens) -> Iterator[Fault]:
        seen, seed = goldens.seen(), f"{self.model.name} {self.dtype} compiled"
        yield from compiler_faults(seen, seed, self._run)
        yield from list(edits.wrong_weights(self.model, self.dtype, seen, seed))[:1]
        yield from list(edits.wrong_constants(self.model, self.dtype, seen, seed))[:1]

    def _run(self, fault: Fault) -> None:
        made, inputs = self.model.made(self.dtype), self.model.given(self.dtype)
        with fault.plant(made, answer=plainly):
            self.model.step(made, inputs, backward=False)


def table() -> Table:
    work = [
        CompiledUnit(model, dtype, Part(), is_struck)
        for model in MODELS.values()
        for dtype in DTYPES
        for is_struck in (False, True)
        if not is_struck or model.name in STRUCK
    ]
    return measured("truth-compiled", work)
