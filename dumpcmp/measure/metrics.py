"""Measures how far a target value lies from golden: blocks, float64 sums, and no opinion.

Golden is surveyed first, because its rms and mean are the units of the relative errors and of
the PCC; then one pass over blocks of both sides that stay in the cache gives everything else.
"""

from dumpcmp.measure.blocks import Lines, surveyed
from dumpcmp.measure.sums import summed
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import USUAL, Closeness, Metrics
from dumpcmp.nouns.value import Value


def measure(golden: Value, target: Value, closeness: Closeness = USUAL) -> Metrics:
    """Measure `target` against `golden`, which must have its shape.

    NaN and the infinities are counted and their places compared; all other numbers are of the
    elements that are finite on both sides. A complex value is measured as its real and imaginary
    parts.
    """
    if golden.shape != target.shape:
        raise CheckError(
            f"golden has shape {list(golden.shape)}, the target {list(target.shape)}",
            hint="only values of one shape can be measured: broadcasting would hide the fault",
        )
    if not golden.numel:
        return Metrics(count=0, equal=golden.dtype == target.dtype)
    lines = Lines.of(golden, target)
    survey = surveyed(lines.golden, lines.width)
    if golden.same_bits(target):
        return Metrics.of_equals(golden.numel, survey.num_finite // lines.parts, survey.extent())
    return summed(lines, survey, closeness).metrics(golden.shape)
