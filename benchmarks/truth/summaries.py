"""The faults of the truth table on compacted archives, where nothing can be run again."""

from benchmarks.tables import Table
from benchmarks.truth.corpus import Part
from benchmarks.truth.models import MODELS
from benchmarks.truth.table import STRUCK, measured, units


def table() -> Table:
    part = Part(one_of=4, summaries=True)
    work = [unit for unit in units(MODELS, STRUCK, part) if unit.is_struck]
    return measured("truth-compacted", work, by_kind=False)
