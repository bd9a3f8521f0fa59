"""What tapping a compiled step costs: the step, with outputs only, and its compilation."""

from __future__ import annotations

import torch

from benchmarks import compiled
from benchmarks.capture import Transformer
from benchmarks.compiled import COSTS, Case, Made, costs, tokens
from benchmarks.tables import Table

NAME = "transformer, 4 layers, d 256"
HEADINGS = ("model", "run", *COSTS, "compilation", "compilation without twins")


def transformer() -> Made:
    return Transformer(), (tokens(4, 128, 512),)


def table() -> Table:
    compiled.MODELS[NAME] = transformer
    cases = [Case(NAME, torch.float32, training, "default") for training in (False, True)]
    how = (
        "Times of a captured step, as multiples of the same compiled step without a capture; "
        "batch 4 x 128, one thread, medians of 15 steps. Compilation is the first step, no cache."
    )
    return Table("compiled-cost", HEADINGS, [costs(case) for case in cases], how)
