"""What a tensor looks like beside the one that it should be: scaled, swapped, zero, transposed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dumpcmp.judge.tolerances import LEAF_CLOSE, LEAF_FIT, LEAF_SHARE, LEAF_SURE
from dumpcmp.nouns.row import Metrics
from dumpcmp.nouns.value import Kind, Value
from dumpcmp.summary.sketch import alike
from dumpcmp.summary.summary import Summary

Bits = NDArray[np.generic]
_FEW = 8  # rows that are named one by one
_LARGEST = 1 << 24  # elements of what is looked at
_MOST = 1 << 16  # rows that are looked for in another order


def likeness(golden: Value, target: Value) -> str:
    """The first of these that is true of `target`, as a sentence; empty where none is."""
    odd = golden.dtype != target.dtype or golden.dtype.kind is Kind.COMPLEX
    if odd or not 0 < golden.numel <= _LARGEST:
        return ""
    looks: tuple[Callable[[Value, Value], str], ...] = (_transposed, _in_places, _reordered)
    if golden.shape != target.shape:
        looks = (_transposed,)
    return next((said for look in looks if (said := look(golden, target))), "")


def arithmetic_likeness(metrics: Metrics, eps: float) -> str:
    """Of a target that is all the same, or golden's times a factor or plus a constant.

    Numbers tell: what a factor leaves of the difference, but for the rounding of `eps`.
    """
    golden, target = metrics.golden, metrics.target
    if target.min == target.max and golden.min < golden.max and metrics.num_finite > 1:
        return f"all its elements are {target.min:.5g}" if target.min else "it is all zero"
    if not metrics.exact or metrics.num_finite < 2 or not golden.norm:
        return ""
    rms, offset = golden.norm / math.sqrt(metrics.num_finite), target.mean - golden.mean
    for share, said in (
        (metrics.gain, _scaled(1 + metrics.gain)), (offset / rms, f"golden's + {offset:.4g}")
    ):  # fmt: skip
        left = math.sqrt(max(0.0, metrics.rel_l2**2 - share**2))
        if _explains(share, left, metrics.rel_l2, metrics.num_finite, eps):
            return said
    return ""


def sketched_likeness(golden: Summary, target: Summary, eps: float) -> str:
    """The same of Summaries: of a target that is scaled, so is every number of its sketch."""
    if golden.sketch is None or target.sketch is None or golden.whole != target.whole:
        return ""
    ours, theirs = alike(golden.sketch, target.sketch)
    size = float((ours.sums * ours.sums).sum())
    if not size:
        return ""
    factor = float((ours.sums * theirs.sums).sum()) / size
    apart, left = ((theirs - ours * f).norm() / ours.norm() for f in (1.0, factor))
    told = _explains(factor - 1, left, apart, ours.sums.size, eps)
    return _scaled(factor) if told else ""


def _scaled(factor: float) -> str:
    return "golden's with the other sign" if factor == -1 else f"golden's x {factor:.4g}"


def _explains(share: float, left: float, apart: float, count: int, eps: float) -> bool:
    """Whether a change by `share` of golden explains a difference of `apart`: `left` is the rest.

    All but rounding must be explained, and more than chance does among `count` numbers.
    """
    fit = max(LEAF_FIT * eps * (1 + abs(share)), LEAF_CLOSE * abs(share))
    likely = abs(share) > LEAF_SURE / math.sqrt(count) * left
    return left <= min(fit, LEAF_SHARE * apart) and likely


def _transposed(golden: Value, target: Value) -> str:
    if len(golden.shape) != 2 or golden.shape != target.shape[::-1] or 1 in golden.shape:
        return ""
    turned = np.array_equal(_words(golden.bits.T), _words(target.bits))
    return "it is golden's transposed" if turned else ""


def _words(bits: Bits) -> NDArray[Any]:
    """`bits` as integers, so that NaN equals itself."""
    dense = np.ascontiguousarray(bits)
    size = dense.dtype.itemsize
    return dense.view(f"u{size}") if size <= 8 else dense.view("u8")


def _rows(bits: Bits) -> Bits:
    return bits.reshape(bits.shape[0] if bits.ndim > 1 else bits.size, -1)


def _in_places(golden: Value, target: Value) -> str:
    """Of a target that differs in one place or in a few rows only."""
    apart = _rows(_words(golden.bits)) != _rows(_words(target.bits))
    where = np.flatnonzero(apart.any(axis=1))
    if np.count_nonzero(apart) == 1:
        place = np.unravel_index(int(np.flatnonzero(apart.reshape(-1))[0]), golden.shape)
        ours, theirs = golden.numbers()[place], target.numbers()[place]
        at = [int(i) for i in place]
        return f"one element differs: {at} is {_short(theirs)} and not {_short(ours)}"
    if apart.shape[1] == 1 or not 0 < where.size <= min(_FEW, apart.shape[0] // 4):
        return ""
    return _few_rows(golden, target, where)


def _few_rows(golden: Value, target: Value, where: NDArray[np.intp]) -> str:
    ours, theirs = _rows(golden.bits)[where], _rows(target.bits)[where]
    named = f"rows {', '.join(map(str, where))}" if where.size > 1 else f"row {where[0]}"
    if where.size > 1 and _are_same_rows(ours, theirs):
        return f"{named} {'have changed places' if where.size > 2 else 'are swapped'}"
    if not _rows(target.numbers())[where].any():
        return f"{named} {'is' if where.size == 1 else 'are'} zero"
    return f"only {named} of {golden.shape[0]} {'differs' if where.size == 1 else 'differ'}"


def _are_same_rows(golden: Bits, target: Bits) -> bool:
    """Whether both have the same rows, in whatever order."""
    if golden.shape[1] == 1:
        return bool(np.array_equal(np.sort(_words(golden), 0), np.sort(_words(target), 0)))
    return len(golden) <= _MOST and _digests(golden) == _digests(target)


def _digests(rows: Bits) -> list[str]:
    return sorted(xxhash.xxh3_64_hexdigest(row.tobytes()) for row in np.ascontiguousarray(rows))


def _reordered(golden: Value, target: Value) -> str:
    """Of a target with golden's rows, or columns, in another order."""
    for word, ours, theirs in (
        ("rows", _rows(golden.bits), _rows(target.bits)),
        ("columns", _columns(golden.bits), _columns(target.bits)),
    ):
        if len(ours) > 1 and _are_same_rows(ours, theirs):
            thing = "elements" if golden.bits.ndim < 2 else word
            return f"it has golden's {thing} in another order"
    return ""


def _columns(bits: Bits) -> Bits:
    return bits.reshape(-1, bits.shape[-1]).T if bits.ndim > 1 else bits.reshape(-1, 1)


def _short(number: Any) -> str:
    return f"{float(number.real):.5g}"
