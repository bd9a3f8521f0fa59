"""Puts the rows that ranks hold into golden's order, where they travelled: tokens to experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.judge.tolerances import SAME_ROW
from dumpcmp.nouns.value import Kind, Value, widen

_FEWEST = 2  # elements of a row: single numbers resemble each other too often


def in_golden_order(golden: Value, shards: Sequence[Value]) -> Value | None:
    """The rows of `shards` in the order that golden has them in, each rank's row once.

    Rows are sorted on both sides by one number for each, the same sum of its elements: rows that
    are the same but for rounding come to stand beside each other, and where any do not, the value
    that this gives is far from golden's. Ranks may hold more rows than golden: zeros in place of
    what other ranks compute, and golden's rows once more. None where there are any others.
    """
    width = golden.shape[-1] if len(golden.shape) > 1 else 0
    is_fit = all(len(s.shape) > 1 and s.shape[-1] == width for s in shards)
    same = all(s.dtype == shards[0].dtype for s in shards)
    if width < _FEWEST or golden.dtype.kind is not Kind.FLOAT or not is_fit or not same:
        return None
    ours = golden.bits.reshape(-1, width)
    theirs = np.concatenate([shard.bits.reshape(-1, width) for shard in shards])
    one, other = _Rows.of(ours, golden), _Rows.of(theirs, shards[0])
    chosen = other.order if len(ours) == len(theirs) else _found(one, other)
    if chosen is None:
        return None
    placed = np.empty_like(theirs[: len(ours)])
    placed[one.order] = theirs[chosen]
    return Value(shards[0].dtype, placed.reshape(golden.shape))


@dataclass(frozen=True)
class _Rows:
    """Rows, what each adds up to by a weight for each element, and how they stand by that."""

    numbers: NDArray[np.float64]
    sums: NDArray[np.float64]
    order: NDArray[np.intp]
    slack: NDArray[np.float64]  # what the sum of a row may be off

    @classmethod
    def of(cls, bits: NDArray[np.generic], value: Value) -> _Rows:
        weights = np.random.default_rng(0).standard_normal(bits.shape[1])
        numbers = widen(bits, value.dtype).astype(np.float64)
        with np.errstate(invalid="ignore"):  # what is not finite is no row of golden's
            sums = numbers @ weights
            slack = SAME_ROW * value.dtype.eps * np.linalg.norm(numbers, axis=1)
        return cls(numbers, sums, np.argsort(sums, kind="stable"), slack)


def _found(ours: _Rows, theirs: _Rows) -> NDArray[np.intp] | None:
    """Where golden's rows, in their order, are among more; None if others are neither nor zero."""
    if not 0 < len(ours.sums) <= len(theirs.sums) or not np.isfinite(ours.sums).all():
        return None
    known, taken = theirs.sums[theirs.order], []
    starts = np.searchsorted(known, (ours.sums - ours.slack)[ours.order])
    last = -1
    for start in starts:  # each row once
        last = max(last + 1, int(start))
        taken.append(last)
    if last >= len(known):
        return None
    left = np.delete(theirs.order, taken)
    left = left[theirs.numbers[left].any(axis=1)]
    return None if _are_others(ours, theirs, left) else theirs.order[taken]


def _are_others(ours: _Rows, theirs: _Rows, left: NDArray[np.intp]) -> bool:
    """Whether any of the rows `left` is none of golden's."""
    known = ours.sums[ours.order]
    above = np.searchsorted(known, theirs.sums[left]).clip(1, len(known) - 1)
    rows = theirs.numbers[left]
    is_one = np.zeros(len(left), bool)
    for near in (ours.order[above - 1], ours.order[above]):
        apart = np.linalg.norm(rows - ours.numbers[near], axis=1)
        is_one |= apart <= ours.slack[near]  # and what is not finite is not
    return not is_one.all()
