"""Annotations of ops: texts, or functions of their arguments; one file per family of ops."""

from dumpcmp.partitioning.rules import contraction, normalization, pointwise, shaping
from dumpcmp.partitioning.rules.ruling import Annotators

RULES: Annotators = {
    **pointwise.RULES,
    **contraction.RULES,
    **normalization.RULES,
    **shaping.RULES,
}
