"""What is wrong with a weight: zero, stale, transposed, permuted, scaled, or something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dumpcmp.nouns.spoken import counted, spans
from dumpcmp.weights.casting import Cast, matching
from dumpcmp.weights.measured_weights import WeightMeasure, blocks, measure, near
from dumpcmp.weights.row_hashes import hash_rows
from dumpcmp.weights.row_layouts import RowLayout, RowNumbers, Stacked, WeightFit
from dumpcmp.weights.weight_rows import WeightVerdict

_FEWEST = 8  # elements that a factor is told by: of fewer any number is golden's times something
_NEARLY_ALL = 0.999  # of the elements must be golden's times the factor
_TINY = 1e-300  # in place of the square of a row of zeros


@dataclass(frozen=True, slots=True)
class WeightFault:
    """A verdict and the evidence for it."""

    verdict: WeightVerdict
    detail: str


def fault_of(fit: WeightFit, found: WeightMeasure) -> WeightFault:
    """Why mine is not golden's, by the first explanation that accounts for every element."""
    return next(filter(None, _explanations(fit, found)))


def _explanations(fit: WeightFit, found: WeightMeasure) -> Iterator[WeightFault | None]:
    yield _nonfinite(found)
    yield _zero(fit, found)
    yield _transposed(fit)
    yield _permuted(fit)
    yield _without_scale(fit)
    yield _scaled(fit, found)
    yield _shifted(fit)
    yield WeightFault(WeightVerdict.OTHER, _numbers(fit, found))


def _nonfinite(found: WeightMeasure) -> WeightFault | None:
    if not found.num_nonfinite:
        return None
    told = f"{counted(found.num_nonfinite, 'element is', 'elements are')} NaN or infinite"
    return WeightFault(WeightVerdict.OTHER, f"{told} where golden is finite")


def _zero(fit: WeightFit, found: WeightMeasure) -> WeightFault | None:
    if found.mine_square == 0 and found.golden_square > 0:
        return WeightFault(WeightVerdict.ZERO, "all elements are zero")
    if found.num_wrong_rows > sum(map(len, found.wrong_rows)):
        return None
    wrong, zero = np.concatenate(found.wrong_rows), np.concatenate(found.zero_rows)
    if zero.size and np.array_equal(wrong, zero):
        told = f"rows {spans(map(int, zero), 4)} of {fit.mine.rows} are zero; all others are right"
        return WeightFault(WeightVerdict.ZERO, told)
    return None


def _transposed(fit: WeightFit) -> WeightFault | None:
    part = fit.golden.parts[0]
    is_square = len(fit.golden.parts) == 1 and part.rows == part.columns > 1
    if not is_square or fit.mine.bits.shape != part.bits.shape:
        return None
    other = replace(fit, golden=Stacked([part.transposed]))
    if not measure(other).matches:
        return None
    return WeightFault(WeightVerdict.TRANSPOSED, "it is golden's with rows and columns exchanged")


def _permuted(fit: WeightFit) -> WeightFault | None:
    expected = replace(fit, layout=fit.layout)
    if told := _reordered(expected):
        return WeightFault(WeightVerdict.PERMUTED, f"rows {told}")
    if len(fit.golden.parts) > 1 or fit.layout.num_padded:
        return None
    if fit.mine.columns < 2:
        return None
    turned = WeightFit(
        fit.mine.transposed, Stacked([fit.golden.parts[0].transposed]),
        RowLayout(np.arange(fit.mine.columns)), fit.cast,
    )  # fmt: skip
    if fit.mine.rows != fit.golden.rows:
        return None
    told = _reordered(turned)
    return WeightFault(WeightVerdict.PERMUTED, f"columns {told}") if told else None


def _reordered(fit: WeightFit) -> str:
    """Which rows stand in place of which others; empty where mine has not golden's rows."""
    mine, golden = _row_hashes(fit)
    if mine is None or golden is None or not np.array_equal(np.sort(mine), np.sort(golden)):
        return ""
    if np.unique(mine).size < 2:
        return ""
    order = np.empty(mine.size, np.int64)
    order[np.argsort(mine, kind="stable")] = np.argsort(golden, kind="stable")
    moved = np.flatnonzero(mine != golden)
    return _described(order, moved, fit)


def _row_hashes(fit: WeightFit) -> tuple[NDArray[np.uint64] | None, NDArray[np.uint64] | None]:
    found: tuple[list[NDArray[np.uint64]], list[NDArray[np.uint64]]] = ([], [])
    for _, golden, mine in blocks(fit):
        if golden.slack is not None or mine.slack is not None:
            return None, None
        for values, hashes in zip((mine.values, fit.cast.of(golden.values)), found, strict=True):
            hashes.append(hash_rows(values))
    sides = [np.concatenate(hashes) for hashes in found]
    return sides[0], sides[1]


def _described(order: RowNumbers, moved: RowNumbers, fit: WeightFit) -> str:
    """A permutation in words."""
    rows = order.size
    if width := _rotary_width(order):
        return f"have halves for pairs, or the reverse, in heads of {width} (rotary)"
    first = moved[0]
    run = _run_length(order, int(first))
    of = _part_names(fit)
    here = f"{first}-{first + run - 1}" if run > 1 else str(first)
    there = f"{order[first]}-{order[first] + run - 1}" if run > 1 else str(order[first])
    told = f"are in another order: {moved.size} of {rows} moved; {here} hold golden's {there}"
    return f"{told} of {of}" if of else told


def _part_names(fit: WeightFit) -> str:
    names = list(dict.fromkeys(part.name for part in fit.golden.parts))
    return f"{', '.join(names)} one above the other" if len(names) > 1 else ""


def _run_length(order: RowNumbers, first: int) -> int:
    breaks = np.flatnonzero(np.diff(order[first:]) != 1)
    return int(breaks[0]) + 1 if breaks.size else order.size - first


def _rotary_width(order: RowNumbers) -> int:
    """The size of heads whose first and second halves became pairs, or the reverse; else 0."""
    rows = order.size
    for width in (each for each in range(4, rows + 1, 2) if rows % each == 0):
        heads = np.arange(rows).reshape(-1, width)
        pairs = heads.reshape(-1, 2, width // 2).transpose(0, 2, 1).reshape(-1)
        halves = heads.reshape(-1, width // 2, 2).transpose(0, 2, 1).reshape(-1)
        if np.array_equal(order, pairs) or np.array_equal(order, halves):
            return width
    return 0


def _without_scale(fit: WeightFit) -> WeightFault | None:
    """Whether mine is golden's codes as they stand."""
    if any(part.scale is None for part in fit.golden.parts) or fit.mine.scale is not None:
        return None
    codes = Stacked([part.codes() for part in fit.golden.parts])
    plain = replace(fit, golden=codes, cast=Cast(fit.mine.torch_dtype))
    if not measure(plain).matches:
        return None
    return WeightFault(WeightVerdict.SCALED, "it is golden's codes: their scale was not applied")


def _scaled(fit: WeightFit, found: WeightMeasure) -> WeightFault | None:
    if not found.golden_square or fit.mine.rows * fit.mine.columns < _FEWEST:
        return None
    factor = found.dot / found.golden_square
    if factor and _explains(fit, lambda golden, _: golden * factor):
        return WeightFault(WeightVerdict.SCALED, f"it is golden's times {factor:.6g}")
    if told := _scaled_by_rows(fit):
        return WeightFault(WeightVerdict.SCALED, told)
    if told := _scaled_by_blocks(fit):
        return WeightFault(WeightVerdict.SCALED, told)
    return None


Predicted = Callable[[Tensor, RowNumbers], Tensor]  # golden's numbers and their rows -> mine's


def _explains(fit: WeightFit, predicted: Predicted) -> bool:
    """Whether nearly all elements, and nearly all of those that are wrong, are as predicted."""
    num, total, num_wrong, total_wrong = 0, 0, 0, 0
    for rows, golden, mine in blocks(fit):
        is_near = near(predicted(golden.values.double(), rows), mine)
        wrong = ~matching(golden, mine, fit.cast)
        num, total = num + int(is_near.sum()), total + is_near.numel()
        num_wrong += int((is_near & wrong).sum())
        total_wrong += int(wrong.sum())
    return num >= _NEARLY_ALL * total and num_wrong >= _NEARLY_ALL * total_wrong


def _scaled_by_rows(fit: WeightFit) -> str:
    """Whether each row, or each column, is golden's times a number of its own."""
    num_rows, num_columns = fit.mine.rows, fit.mine.columns
    rows_dot, rows_square = torch.zeros(2, num_rows, dtype=torch.float64)
    columns_dot, columns_square = torch.zeros(2, num_columns, dtype=torch.float64)
    for rows, golden, mine in blocks(fit):
        a, b = golden.values.double(), mine.values.double()
        at = slice(int(rows[0]), int(rows[-1]) + 1)
        rows_dot[at], rows_square[at] = (a * b).sum(1), (a * a).sum(1)
        columns_dot += (a * b).sum(0)
        columns_square += (a * a).sum(0)
    each_row = rows_dot / rows_square.clamp_min(_TINY)
    each_column = columns_dot / columns_square.clamp_min(_TINY)

    def by_row(golden: Tensor, rows: RowNumbers) -> Tensor:
        return golden.mul(each_row[torch.from_numpy(rows), None])

    if num_columns >= _FEWEST and num_rows > 1 and _explains(fit, by_row):
        return _range_of("row", each_row)
    has_columns = num_rows >= _FEWEST and num_columns > 1
    if has_columns and _explains(fit, lambda golden, _: golden * each_column):
        return _range_of("column", each_column)
    return ""


def _scaled_by_blocks(fit: WeightFit) -> str:
    """Whether each block of the scales is golden's times a number of its own."""
    scale = fit.mine.scale or fit.golden.parts[0].scale
    if scale is None or scale.table.numel() < 2 or len(fit.golden.parts) > 1:
        return ""
    across = torch.arange(fit.mine.columns) // scale.columns
    shape = (2, (fit.mine.rows - 1) // scale.rows + 1, int(across[-1]) + 1)
    sums = torch.zeros(shape, dtype=torch.float64)
    for rows, golden, mine in blocks(fit):
        a, b = golden.values.double(), mine.values.double()
        by_columns = torch.zeros(2, a.shape[0], shape[2], dtype=torch.float64)
        by_columns.index_add_(2, across, torch.stack([a * b, a * a]))
        sums.index_add_(1, torch.from_numpy(rows // scale.rows), by_columns)
    factors = sums[0] / sums[1].clamp_min(_TINY)

    def predicted(golden: Tensor, rows: RowNumbers) -> Tensor:
        return golden * factors[torch.from_numpy(rows // scale.rows)][:, across]

    told = f"block of {scale.rows} x {scale.columns}"
    return _range_of(told, factors) if _explains(fit, predicted) else ""


def _range_of(what: str, factors: Tensor) -> str:
    low, high = float(factors.min()), float(factors.max())
    return f"each {what} is golden's times a number of its own, {low:.4g} to {high:.4g}"


def _shifted(fit: WeightFit) -> WeightFault | None:
    """Whether mine is golden plus a constant, as norms are that store weight - 1."""
    total, count = 0.0, 0
    for _, golden, mine in blocks(fit):
        total += float((mine.values.double() - golden.values.double()).sum())
        count += golden.values.numel()
    shift = total / count
    if count < _FEWEST or not math.isfinite(shift) or not shift:
        return None
    if not _explains(fit, lambda golden, _: golden + shift):
        return None
    return WeightFault(WeightVerdict.OTHER, f"it is golden's plus {shift:.6g}")


def _numbers(fit: WeightFit, found: WeightMeasure) -> str:
    """What is known of a difference that nothing explains."""
    share = found.num_wrong / max(1, found.count)
    told = f"{found.num_wrong} of {found.count} elements differ ({100 * share:.3g} %), "
    told += f"rel_l2 {found.rel_l2:.3g}, cosine {found.cosine:.4f}"
    rows = np.concatenate(found.wrong_rows) if found.wrong_rows else np.empty(0, np.int64)
    if 0 < rows.size < fit.mine.rows:
        told += f"; rows {spans(map(int, rows), 3)} of {fit.mine.rows}"
    return told
