"""What tapping a compiled step costs: the step, with outputs only, and its compilation."""

from __future__ import annotations

import torch

from benchmarks.compiled import Case, costs
from benchmarks.tables import Table

HEADINGS = ("model", "run", "all values", "outputs only", "compilation")


def table() -> Table:
    cases = [
        Case("transformer, 4 layers", torch.float32, training, "default")
        for training in (False, True)
    ]
    how = (
        "Times of a captured step, as multiples of the same compiled step without a capture; "
        "medians of 15 steps. Compilation is the first step, with no cache."
    )
    return Table("compiled-cost", HEADINGS, [costs(case) for case in cases], how)
