"""What a difference looks like: a few hypotheses, each tried on the numbers of both sides.

First it is asked where the difference lies: in one element, in some indices of a dim, from one of
them on, or everywhere. Then what happened there: each hypothesis says what the target would be, and
its fit is the share of the squared difference that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.judge.tolerances import EXPLAINED, WITHIN_REGION
from dumpcmp.nouns.background import Hypothesis
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.nouns.value import Dtype

Wide = NDArray[Any]

MOST = 3  # hypotheses that are told
LEAST = 8  # elements: fewer fit anything
_SHIFTS = (1, -1, 2, -2)
_MOST_MOVED = 64  # slices of a dim that are looked for in other places
_MOST_ELEMENTS = 1 << 22  # that are compared in the search for them
_BITS = {"float8_e5m2": 3, "float8_e4m3": 4, "bfloat16": 8, "float16 or TF32": 11, "float32": 24}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a difference lies: indices of a dim, in order; everywhere where there is no dim."""

    dim: int | None = None
    indices: tuple[int, ...] = ()
    length: int = 0  # of the dim
    share: float = 1.0  # of the squared difference

    def of(self, numbers: Wide) -> Wide:
        """What of `numbers` lies in it."""
        return numbers if self.dim is None else np.take(numbers, self.indices, self.dim)

    @property
    def name(self) -> str:
        """What kind of region it is."""
        if self.dim is None:
            return "everywhere"
        if self.indices[-1] == self.length - 1 and self._is_span and len(self.indices) > 1:
            return "from one index on"
        return "one index" if len(self.indices) == 1 else "some indices"

    @property
    def _is_span(self) -> bool:
        return self.indices[-1] - self.indices[0] == len(self.indices) - 1

    def __str__(self) -> str:
        if self.dim is None:
            return "everywhere"
        first, number = self.indices[0], len(self.indices)
        if self.name == "from one index on":
            return f"from index {first} of dim {self.dim} on"
        if number == 1:
            return f"at index {first} of dim {self.dim} only"
        if self._is_span:
            return f"at indices {first} to {self.indices[-1]} of dim {self.dim} only{self._part}"
        shown = ", ".join(map(str, self.indices[:4])) + (", ..." if number > 4 else "")
        return f"at {number} indices of dim {self.dim} only ({shown})"

    @property
    def _part(self) -> str:
        """Which of equal parts of the dim it is, as a head is of the channels."""
        number = len(self.indices)
        if self.length % number or self.indices[0] % number:
            return ""
        return f", which is part {self.indices[0] // number} of {self.length // number}"


def suppose(golden: Wide, target: Wide, dtype: Dtype) -> tuple[Hypothesis, ...]:
    """What explains the difference of two sides in float64, of one shape; the best fit first."""
    known = np.isfinite(golden) & np.isfinite(target)
    if golden.size < LEAST or golden.size != target.size:
        return ()
    if not known.all():
        return tuple(_strange(golden, target, known))
    difference = target - golden
    energy = float(np.square(difference).sum())
    if not energy:
        return ()
    region = find_region(difference)
    if golden.ndim > 2 and _is_in_fewer_rows(difference, region):
        flat = (-1, golden.shape[-1])
        in_rows = suppose(golden.reshape(flat), target.reshape(flat), dtype)
        named = f"of the {counted(golden.size // golden.shape[-1], 'row')}"
        return tuple(one._replace(said=one.said.replace("of dim 0", named)) for one in in_rows)
    ours, theirs = region.of(golden), region.of(target)
    found = [*_single(golden, target, difference, energy)]
    found += [*_tried(ours, theirs, region, dtype), *_shifted(golden, target)]
    found += [*_turned(golden, target, energy), *_moved(golden, target, region, energy)]
    if region.dim is not None:
        found += [
            one for one in _tried(golden, target, Whereabouts(), dtype) if one.fit > region.share
        ]
        said = f"it differs {region}"
        found.append(Hypothesis(region.name, said, region.share * 0.999))  # a cause goes before it
    told = _without_repeats(one for one in found if one.fit >= EXPLAINED)
    return tuple(sorted(told, key=lambda one: -round(one.fit, 6))[:MOST])


def _is_in_fewer_rows(difference: Wide, region: Whereabouts) -> bool:
    """Whether fewer of all rows of the last dim hold it than any dim by itself can tell."""
    rows = find_region(difference.reshape(-1, difference.shape[-1]))
    share = len(region.indices) / region.length if region.length else 1.0
    return rows.dim == 0 and len(rows.indices) / rows.length < share


def _single(golden: Wide, target: Wide, difference: Wide, energy: float) -> Iterator[Hypothesis]:
    """One element that holds all of the difference."""
    place = np.unravel_index(int(np.abs(difference).argmax()), difference.shape)
    share = float(difference[place]) ** 2 / energy
    if share >= WITHIN_REGION:
        at = [int(i) for i in place]
        said = f"one element differs: {at} is {target[place]:.5g} and not {golden[place]:.5g}"
        yield Hypothesis("one element", said, share)


def _without_repeats(found: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Zero and the other sign are factors, too: they are told once, by the simpler word."""
    simple: list[Hypothesis] = []
    for one in found:
        if one.name == "scale" and any(one.fit - other.fit < 1e-6 for other in simple):
            continue
        if one.name in ("zeroed", "sign"):
            simple.append(one)
        yield one


def _strange(golden: Wide, target: Wide, known: NDArray[np.bool_]) -> Iterator[Hypothesis]:
    """Of sides with NaN or Inf: how many elements they are, where the other side has numbers."""
    fresh = int((np.isfinite(golden) & ~np.isfinite(target)).sum())
    if fresh:
        where = np.argwhere(~known)[0].tolist()
        elements, are = counted(golden.size, "element"), plural(fresh, "is", "are")
        said = f"{fresh} of {elements} {are} NaN or Inf, the first at {where}"
        yield Hypothesis("not finite", said, 1.0)


def find_region(difference: Wide) -> Whereabouts:
    """The smallest part of a dim that holds nearly all of the difference."""
    best = Whereabouts()
    smallest = 1.0
    squares = np.square(difference)
    total = float(squares.sum())
    for dim, length in enumerate(difference.shape):
        others = tuple(axis for axis in range(difference.ndim) if axis != dim)
        held = squares.sum(axis=others)
        order = np.argsort(-held, kind="stable")
        number = int(np.searchsorted(np.cumsum(held[order]), WITHIN_REGION * total)) + 1
        indices = tuple(sorted(order[: min(number, length)].tolist()))
        share = float(held[list(indices)].sum()) / total
        region = Whereabouts(dim, indices, length, share)
        if len(indices) / length < smallest and _stands_out(region, held, total):
            best, smallest = region, len(indices) / length
    return best


def _stands_out(region: Whereabouts, held: Wide, total: float) -> bool:
    """Whether a region is no chance: few indices, or all from one on and nothing before it."""
    if region.length > 1 and len(region.indices) <= region.length / 2:
        return True
    before = float(held[: region.indices[0]].sum())
    is_end = region.name == "from one index on"
    return is_end and region.indices[0] > 0 and before <= (1 - WITHIN_REGION) ** 2 * total


Prediction = Callable[[Wide, Wide], tuple[str, Wide]]


def _tried(ours: Wide, theirs: Wide, where: Whereabouts, dtype: Dtype) -> Iterator[Hypothesis]:
    """The hypotheses on what happened in one region."""
    energy = float(np.square(theirs - ours).sum())
    place = "" if where.dim is None else f" {where}"
    for name, predict in _PREDICTIONS.items():
        said, predicted = predict(ours, theirs)
        fit = where.share * _fit(theirs, predicted, energy)
        if fit >= EXPLAINED and ours.size >= LEAST:
            yield Hypothesis(name, f"{said}{place}", fit)
    yield from _rounded(ours, theirs, where, dtype, energy)


def _fit(target: Wide, predicted: Wide, energy: float) -> float:
    left = float(np.square(target - predicted).sum())
    return 1 - left / energy if energy else 0.0


def _scaled(golden: Wide, target: Wide) -> tuple[str, Wide]:
    size = float(np.square(golden).sum())
    factor = float((golden * target).sum()) / size if size else 1.0
    return f"mine is golden's times {factor:.5g}", golden * factor


def _negated(golden: Wide, target: Wide) -> tuple[str, Wide]:  # noqa: ARG001
    return "mine has the other sign", -golden


def _zeroed(golden: Wide, target: Wide) -> tuple[str, Wide]:  # noqa: ARG001
    return "mine is zero", np.zeros_like(golden)


def _offset(golden: Wide, target: Wide) -> tuple[str, Wide]:
    step = float((target - golden).mean())
    return f"mine is golden's plus {step:.5g}", golden + step


# The simplest first: of two that fit equally well the first is told first.
_PREDICTIONS: dict[str, Prediction] = {
    "zeroed": _zeroed,
    "sign": _negated,
    "scale": _scaled,
    "offset": _offset,
}


def _rounded(
    golden: Wide, target: Wide, where: Whereabouts, dtype: Dtype, energy: float
) -> Iterator[Hypothesis]:
    """A rounding to fewer bits than the dtype has."""
    place = "" if where.dim is None else f" {where}"
    narrower = {name: bits for name, bits in _BITS.items() if 2.0 ** (1 - bits) > dtype.eps > 0}
    for name, bits in sorted(narrower.items(), key=lambda one: -one[1]):
        fit = where.share * _fit(target, rounded_to(golden, bits), energy)
        if fit >= EXPLAINED:
            yield Hypothesis("rounding", f"mine is golden's rounded to {name}{place}", fit)
            return


def rounded_to(numbers: Wide, bits: int) -> Wide:
    """`numbers`, to nearest and ties to even, with so many bits of significand."""
    significand, exponent = np.frexp(numbers)
    whole: Wide = np.ldexp(np.rint(significand * 2.0**bits), exponent - bits)
    return whole


def _shifted(golden: Wide, target: Wide) -> Iterator[Hypothesis]:
    """Rows that stand one or two places from where they should; what came in is not looked at."""
    for dim, length in enumerate(golden.shape):
        for by in _SHIFTS:
            if length < 2 * abs(by) + 2:
                continue
            into = slice(max(by, 0), length + min(by, 0))
            out = slice(max(-by, 0), length - max(by, 0))
            at = (slice(None),) * dim
            theirs, ours, plain = target[(*at, into)], golden[(*at, out)], golden[(*at, into)]
            fit = _fit(theirs, ours, float(np.square(theirs - plain).sum()))
            if fit >= EXPLAINED and theirs.size >= LEAST:
                said = f"mine is golden's shifted by {by} along dim {dim}"
                yield Hypothesis("shift", said, fit)


def _turned(golden: Wide, target: Wide, energy: float) -> Iterator[Hypothesis]:
    """Two dims that changed places: of equal lengths, or read in the other's order."""
    for dim in range(golden.ndim - 1):
        turned = np.swapaxes(golden, dim, dim + 1)
        if 1 in golden.shape[dim : dim + 2]:
            continue
        fit = _fit(target, turned.reshape(golden.shape), energy)
        if fit >= EXPLAINED:
            said = f"dims {dim} and {dim + 1} of golden's have changed places in mine"
            yield Hypothesis("transposed", said, fit)


def _moved(golden: Wide, target: Wide, region: Whereabouts, energy: float) -> Iterator[Hypothesis]:
    """Slices of a dim that stand in the places of others: swapped, reordered, or repeated."""
    dim, indices = region.dim, region.indices
    if dim is None:
        dims = [d for d, length in enumerate(golden.shape) if 1 < length <= _MOST_MOVED]
        for each in dims:
            every = tuple(range(golden.shape[each]))
            yield from _placed(golden, target, each, every, energy)
    elif len(indices) <= _MOST_MOVED:
        yield from _placed(golden, target, dim, indices, energy)


def _placed(
    golden: Wide, target: Wide, dim: int, indices: tuple[int, ...], energy: float
) -> Iterator[Hypothesis]:
    ours = np.moveaxis(golden, dim, 0).reshape(golden.shape[dim], -1)
    theirs = np.moveaxis(target, dim, 0).reshape(golden.shape[dim], -1)
    if ours.shape[1] < 2 or ours.size * len(indices) > _MOST_ELEMENTS:
        return
    taken = [int(np.square(ours - theirs[i]).sum(axis=1).argmin()) for i in indices]
    if all(one == other for one, other in zip(taken, indices, strict=True)):
        return
    predicted = ours.copy()
    predicted[list(indices)] = ours[taken]
    fit = _fit(theirs, predicted, energy)
    if fit < EXPLAINED:
        return
    moved = [(i, j) for i, j in zip(indices, taken, strict=True) if i != j]
    yield Hypothesis(*_said_of(moved, dim), fit)


def _said_of(moved: list[tuple[int, int]], dim: int) -> tuple[str, str]:
    """The name and the sentence for slices that hold those of other places."""
    places, sources = (sorted(side) for side in zip(*moved, strict=True))
    if places == sources and len(moved) == 2:
        return "swapped", f"indices {places[0]} and {places[1]} of dim {dim} are swapped"
    if places == sources:
        return "reordered", f"{len(moved)} indices of dim {dim} have changed places"
    here, there = moved[0]
    more = (
        f", and {counted(len(moved) - 1, 'more holds', 'more hold')} others'"
        if len(moved) > 1
        else ""
    )
    return "repeated", f"index {here} of dim {dim} holds what golden has at index {there}{more}"
