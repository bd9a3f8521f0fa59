"""The faults of the older table, asked for again beside those of this one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import faults
from benchmarks.cases import FAULTS
from benchmarks.cases import Case as OlderCase
from benchmarks.subjects import SUBJECTS
from benchmarks.truth.asking import Graded
from benchmarks.truth.corpus import Case, Found, Part, Place, carried_out
from dumpcmp.comparing import compare

GRADES = {"exact": "exact", "module": "near", "late": "wrong", "early": "wrong", "missed": "missed"}


@dataclass(frozen=True, slots=True)
class OlderUnit:
    """A share of the work: the older faults of one subject in one dtype."""

    subject: str
    dtype: str
    part: Part

    def __call__(self) -> list[Case]:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as room:
            return list(self._cases(Path(room)))

    def _cases(self, room: Path) -> Iterator[Case]:
        subject = SUBJECTS[self.subject]
        golden = faults.dumped(subject, room / "golden", dtype=self.dtype)
        for number, case in enumerate(FAULTS[self.subject]):
            words = f"{self.subject}, {self.dtype}, same device: {case.name} at {case.op}"
            if self.dtype not in case.dtypes or not self.part.has(words):
                continue

            def found(case: OlderCase = case, number: int = number) -> Found:
                mine = faults.dumped(subject, room / str(number), case.plant, self.dtype)
                began = time.perf_counter()
                outcome = compare(golden, mine)
                spent = time.perf_counter() - began
                said = faults.finding(outcome, case)
                graded = Graded(GRADES[said.found], said.told, (), said.early_alarms, spent)
                place = Place(self.subject, "older faults", self.dtype, "same device")
                return Found(place, case.name, (case.op,), True, "planted before", False, graded)

            yield carried_out(words, found)


def older_units(part: Part) -> Iterator[OlderUnit]:
    for subject in SUBJECTS:
        for dtype in ("float32", "bfloat16"):
            yield OlderUnit(subject, dtype, part)
