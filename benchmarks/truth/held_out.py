"""The truth table on models and places that no rule was made for; look at it at the end alone."""

from benchmarks.tables import Table
from benchmarks.truth.corpus import Part
from benchmarks.truth.held_models import HELD_OUT
from benchmarks.truth.table import measured, units

STRUCK = ("OPT", "OLMoE", "RWKV-like", "GRU tagger", "point set", "denoiser", "wav2vec2")


def table() -> Table:
    return measured("truth-held-out", list(units(HELD_OUT, STRUCK, Part(one_of=3))))
