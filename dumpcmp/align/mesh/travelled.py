"""Puts the rows that ranks hold into golden's order, where they travelled: tokens to experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.value import Kind, Value, widen

_FEWEST = 2  # elements of a row: single numbers resemble each other too often


def in_golden_order(golden: Value, shards: Sequence[Value]) -> Value | None:
    """The rows of `shards` in the order that golden has them in, each rank's row once.

    None where they are not as many. Rows are sorted on both sides by one number for each, the
    same sum of its elements: rows that are the same but for rounding come to stand beside each
    other, and where any do not, the value that this gives is far from golden's.
    """
    width = golden.shape[-1] if len(golden.shape) > 1 else 0
    is_fit = all(len(s.shape) > 1 and s.shape[-1] == width for s in shards)
    same = all(s.dtype == shards[0].dtype for s in shards)
    if width < _FEWEST or golden.dtype.kind is not Kind.FLOAT or not is_fit or not same:
        return None
    ours = golden.bits.reshape(-1, width)
    theirs = np.concatenate([shard.bits.reshape(-1, width) for shard in shards])
    if len(ours) != len(theirs):
        return None
    placed = np.empty_like(theirs)
    placed[_order(ours, golden)] = theirs[_order(theirs, shards[0])]
    return Value(shards[0].dtype, placed.reshape(golden.shape))


def _order(rows: NDArray[np.generic], of: Value) -> NDArray[np.intp]:
    """How the rows stand by what they add up to, each element by a weight of its own."""
    weights = np.random.default_rng(0).standard_normal(rows.shape[1])
    sums = widen(rows, of.dtype).astype(np.float64) @ weights
    return np.argsort(sums, kind="stable")
