"""Makes a repro smaller while its fault stays: rows, other dims, and the dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.case import (
    ErrorMeasure,
    GuiltyKind,
    ReproCase,
    ReproCode,
    ShownBy,
    error_of,
)
from dumpcmp.reproducing.parallel_case import ParallelCase
from dumpcmp.reproducing.trials import Trials

_MOST_TRIALS = 80
_MOST_COMPILED = 12  # which take seconds each
_MOST_ON_RANKS = 24  # which take a process each
_MOST_TOGETHER = 3  # dims of inputs that are cut as one
_MARGIN = 2.0  # times the limit: by how much a smaller case has to be wrong

InputDim = tuple[str, int]  # of an input: its variable, and which dim


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """Elements that are kept of dims of one size, and whether numbers of that size change too."""

    dims: Sequence[InputDim]
    kept: Tensor
    size: int
    renumbers: bool
    output_dim: int | None  # of the result, where it is cut alike


def shrunk(case: ReproCase, trials: Trials) -> ReproCase:
    """The smallest of what was tried that shows the fault; each step was run before it is taken."""
    if isinstance(case, ParallelCase):
        return _shrunk_on_ranks(case, trials)
    for output_dim in _output_dims(case):
        case = _first_that_shows(case, trials, list(_along_output(case, output_dim)))
    if case.shown is ShownBy.FRESH:
        for dim in _input_dims(case):
            case = _first_that_shows(case, trials, list(_inside(case, dim)))
        case = _in_float32(case, trials)
    return case


def _shrunk_on_ranks(case: ParallelCase, trials: Trials) -> ParallelCase:
    """The same with fewer rows: dims of one size are cut alike, on all ranks and in the whole."""
    sizes = _input_dims(case) if case.shown is ShownBy.FRESH else ()
    for size in (each for each in sizes if each in case.free_sizes):
        for kept in dict.fromkeys((1, 2, 4, size // 2)):
            if not 0 < kept < size or trials.num_run > _MOST_ON_RANKS:
                continue
            try:
                smaller = case.cut(size, kept)
            except (Unreplayable, RuntimeError, IndexError):
                continue
            if smaller.expected.numel() and trials.shows(smaller):
                case = smaller
                break
    return case


def _first_that_shows(
    case: ReproCase, trials: Trials, shrinkages: Sequence[Shrinkage]
) -> ReproCase:
    for shrinkage in shrinkages:
        if trials.num_run > (_MOST_COMPILED if case.compiles else _MOST_TRIALS):
            break
        smaller = _smaller(case, shrinkage)
        if smaller is not None and trials.shows(smaller):
            return smaller
    return case


def _output_dims(case: ReproCase) -> Sequence[int]:
    """The largest first."""
    shape = case.expected.shape
    return sorted((d for d, size in enumerate(shape) if size > 1), key=lambda d: -shape[d])


def _input_dims(case: ReproCase) -> Sequence[int]:
    """The sizes of dims of inputs, the largest first."""
    sizes = {size for value in case.values.values() for size in value.shape if size > 1}
    return sorted(sizes, reverse=True)


def _along_output(case: ReproCase, output_dim: int) -> Iterator[Shrinkage]:
    size = case.expected.shape[output_dim]
    worst = _worst(case, output_dim)
    fitting = [
        (name, dim)
        for name, value in case.values.items()
        for dim, own in enumerate(value.shape)
        if own == size
    ]
    for kept in _kept(size, worst):
        for dims in _subsets(fitting):
            for renumbers in (False, True):
                yield Shrinkage(dims, kept, size, renumbers, output_dim)


def _inside(case: ReproCase, size: int) -> Iterator[Shrinkage]:
    """Dims that the result lacks; the whole is computed anew."""
    fitting = [
        (name, dim)
        for name, value in case.values.items()
        for dim, own in enumerate(value.shape)
        if own == size
    ]
    for kept in _kept(size, 0):
        for dims in _subsets(fitting):
            for renumbers in (False, True):
                yield Shrinkage(dims, kept, size, renumbers, None)


def _kept(size: int, worst: int) -> Iterator[Tensor]:
    """Which elements stay: one, two, four, or half of them, the worst among them."""
    for number in dict.fromkeys((1, 2, 4, size // 4, size // 2)):
        if 0 < number < size:
            start = min(worst - worst % number, size - number)
            yield torch.arange(start, start + number)


def _subsets(dims: Sequence[InputDim]) -> Iterator[Sequence[InputDim]]:
    """All together, then one alone, then two, then three."""
    if len(dims) > _MOST_TOGETHER:
        yield dims
    for number in (*range(1, min(len(dims), _MOST_TOGETHER) + 1), 0):
        yield from combinations(dims, number)


def _worst(case: ReproCase, dim: int) -> int:
    """Where along `dim` the recorded result is farthest off."""
    got = case.recorded
    if got is None or got.shape != case.expected.shape:
        return 0
    off = (got.to(case.expected.dtype) - case.expected).abs() if _is_number(got) else _differs(case)
    off = torch.where(off.isfinite(), off.double(), torch.inf)
    return (
        int(off.movedim(dim, 0).flatten(1).amax(1).argmax()) if off.ndim > 1 else int(off.argmax())
    )


def _is_number(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _differs(case: ReproCase) -> Tensor:
    assert case.recorded is not None
    return (case.recorded != case.expected).double()


def _smaller(case: ReproCase, shrinkage: Shrinkage) -> ReproCase | None:
    """`case` with those elements alone; None where it is not the same fault any more."""
    if case.kind is GuiltyKind.VALUE:
        return _smaller_value(case, shrinkage)
    values = dict(case.values)
    for name, dim in shrinkage.dims:
        values[name] = _cut(values[name], dim, shrinkage.kept)
    mine = _renumbered(case.mine, shrinkage)
    golden = _renumbered(case.golden, shrinkage) if case.golden else None
    right = golden or mine
    try:
        expected = right.run(values)
    except (Unreplayable, RuntimeError, IndexError):
        return None
    recorded = case.recorded
    if shrinkage.output_dim is not None and recorded is not None:
        if recorded.shape != case.expected.shape:
            return None
        recorded = _cut(recorded, shrinkage.output_dim, shrinkage.kept)
        if case.shown is ShownBy.RECORDED and not _still_wrong(case, recorded, expected, shrinkage):
            return None
    if case.measure is ErrorMeasure.EXACT and case.expected.is_floating_point():
        expected = expected.to(case.expected.dtype)
    if case.shown is ShownBy.FRESH:
        recorded = None  # what the whole gave is not what these elements give
    smaller = replace(
        case, values=values, mine=mine, golden=golden, expected=expected, recorded=recorded
    )
    return smaller if _num_elements(smaller) < _num_elements(case) else None


def _smaller_value(case: ReproCase, shrinkage: Shrinkage) -> ReproCase | None:
    """The same elements of both sides of a value that no call made."""
    dim = shrinkage.output_dim
    if dim is None or list(shrinkage.dims) != [("x0", dim)]:
        return None
    values = {"x0": _cut(case.values["x0"], dim, shrinkage.kept)}
    expected = _cut(case.expected, dim, shrinkage.kept)
    return replace(case, values=values, expected=expected, recorded=values["x0"])


def _still_wrong(case: ReproCase, recorded: Tensor, expected: Tensor, shrinkage: Shrinkage) -> bool:
    """Whether what was recorded is as wrong, of a call that treats these elements alone."""
    assert shrinkage.output_dim is not None
    before = _cut(case.expected, shrinkage.output_dim, shrinkage.kept)
    if before.shape != expected.shape or error_of(case.measure, expected, before) > case.limit / 8:
        return False
    return error_of(case.measure, recorded, expected) > _MARGIN * case.limit


def _renumbered(code: ReproCode, shrinkage: Shrinkage) -> ReproCode:
    return code.with_number(shrinkage.size, len(shrinkage.kept)) if shrinkage.renumbers else code


def _cut(value: Tensor, dim: int, kept: Tensor) -> Tensor:
    """Some elements along `dim`; a view where they lie one after another, so that gaps stay."""
    return value.narrow(dim, int(kept[0]), len(kept))


def _num_elements(case: ReproCase) -> int:
    return sum(value.numel() for value in case.values.values())


def _in_float32(case: ReproCase, trials: Trials) -> ReproCase:
    """The same in float32, where the fault is none of a shorter or longer dtype."""
    values: Mapping[str, Tensor] = {
        name: value.float() if value.is_floating_point() else value
        for name, value in case.values.items()
    }
    if all(values[name].dtype is value.dtype for name, value in case.values.items()):
        return case
    right = case.golden or case.mine
    try:
        expected = right.run(values)
    except Unreplayable:
        return case
    if case.measure is ErrorMeasure.EXACT:
        return case
    plain = replace(case, values=values, expected=expected, recorded=None)
    return plain if trials.shows(plain) else case
