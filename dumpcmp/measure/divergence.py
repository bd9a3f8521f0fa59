"""Kullback and Leibler's divergence of two values, read as the logits of distributions."""

import math

import numpy as np

from dumpcmp.measure.blocks import BLOCK
from dumpcmp.nouns.value import Kind, Value


def kl_divergence(golden: Value, target: Value) -> float:
    """How far the softmax of the target is from golden's, over all elements at once; NaN of none.

    It is the mean of golden - target, weighted by golden's softmax, and the difference of the
    logarithms of their sums. Complex values have none.
    """
    if not golden.numel or Kind.COMPLEX in (golden.dtype.kind, target.dtype.kind):
        return math.nan
    ours, theirs = golden.numbers().reshape(-1), target.numbers().reshape(-1)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return math.nan
    high, other_high = float(ours.max()), float(theirs.max())
    total, other_total, apart = 0.0, 0.0, 0.0
    for start in range(0, ours.size, BLOCK):
        a = ours[start : start + BLOCK].astype(np.float64)
        b = theirs[start : start + BLOCK].astype(np.float64)
        weights = np.exp(a - high)
        total += float(weights.sum())
        other_total += float(np.exp(b - other_high).sum())
        apart += float(weights @ (a - b))
    logarithms = math.log(other_total) + other_high - math.log(total) - high
    return max(0.0, apart / total + logarithms)
