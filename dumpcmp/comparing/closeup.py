"""Where in a tensor two sides differ: a small map, a histogram, the worst elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dumpcmp.comparing.supposing import Wide, suppose
from dumpcmp.nouns.background import CloseUp, Element, Histogram, Profile
from dumpcmp.nouns.value import Kind, Value

MAP = (48, 72)  # tiles of the error map, at most
SPANS = 24  # of the histogram
LONGEST = 96  # numbers of a profile
NUM_WORST = 10
_HELD = 0.9  # of the squared difference: what holds so much of it holds it
_FEW = 0.25  # of the indices of a dim, at most, that are worth a sentence
_NAMES = ("index", "indices")


def close_up(row: int, golden: Value, target: Value) -> CloseUp:
    """Look closely at two sides of one shape."""
    ours, theirs = as_numbers(golden), as_numbers(target)
    if ours.shape != theirs.shape:
        problem = f"the shapes differ: {list(ours.shape)} and {list(theirs.shape)}"
        return CloseUp(row, ours.shape, problem=problem)
    if not ours.size:
        return CloseUp(row, ours.shape, problem="there are no elements")
    with np.errstate(invalid="ignore", over="ignore"):
        difference = theirs - ours
    error = np.abs(difference)
    strange = ~np.isfinite(error)
    known = np.where(strange, 0.0, error)
    matrix = np.where(strange, np.inf, error).reshape(*as_matrix(ours.shape))
    return CloseUp(
        row,
        ours.shape,
        (matrix.shape[0], matrix.shape[1]),
        tuple(tuple(_short(line)) for line in _tiles(matrix)),
        _histogram(error, strange),
        tuple(_worst(ours, theirs, np.where(strange, np.inf, error))),
        tuple(_profile(known, dim) for dim in range(known.ndim)),
        tuple(_places(known)),
        suppose(ours, theirs, golden.dtype),
    )


def as_numbers(value: Value) -> Wide:
    """The elements as float64; of complex ones the real and imaginary parts, in a last dim."""
    numbers = value.numbers()
    if value.dtype.kind is Kind.COMPLEX:
        numbers = np.stack([numbers.real, numbers.imag], -1)
    return np.asarray(numbers).astype(np.float64)


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns that a tensor of `shape` has as a matrix: its last dim lies across."""
    columns = shape[-1] if shape else 1
    return int(np.prod(shape, dtype=np.int64)) // columns, columns


def _short(numbers: Wide) -> Iterator[float]:
    """Wide with the few digits that a picture needs."""
    return (float(f"{number:.3g}") for number in numbers.tolist())


def _tiles(matrix: Wide) -> Wide:
    """The matrix, no larger than MAP: each tile has the largest element of what it stands for."""
    for axis, most in enumerate(MAP):
        starts = _starts(matrix.shape[axis], most)
        matrix = np.maximum.reduceat(matrix, starts, axis=axis)
    return matrix


def _starts(length: int, most: int) -> NDArray[np.int64]:
    """Where at most `most` spans of `length` begin that are as long as each other, but for one."""
    return np.unique(np.arange(min(length, most)) * length // min(length, most))


def _histogram(error: Wide, strange: NDArray[np.bool_]) -> Histogram:
    sizes = error[~strange & (error > 0)]
    num_equal, num_other = int((error == 0).sum()), int(strange.sum())
    if not sizes.size:
        return Histogram(0.0, 0.0, (), num_equal, num_other)
    logs = np.log10(sizes)
    low, high = float(logs.min()), float(logs.max())
    counts, _ = np.histogram(logs, SPANS, (low, high if high > low else low + 1))
    return Histogram(low, high, tuple(counts.tolist()), num_equal, num_other)


def _worst(golden: Wide, target: Wide, error: Wide) -> Iterator[Element]:
    flat = error.reshape(-1)
    number = min(NUM_WORST, flat.size)
    largest = np.argpartition(flat, flat.size - number)[flat.size - number :]
    for place in largest[np.argsort(-flat[largest], kind="stable")]:
        if flat[place] > 0:
            index = np.unravel_index(place, error.shape)
            at = tuple(int(i) for i in index)
            yield Element(at, float(golden[index]), float(target[index]))


def _profile(error: Wide, dim: int) -> Profile:
    """The rms of the difference along one dim; of a long one the largest of each span."""
    held = np.sqrt(_held_by(error, dim) / max(1, error.size // error.shape[dim]))
    return tuple(_short(np.maximum.reduceat(held, _starts(len(held), LONGEST))))


def _held_by(error: Wide, dim: int) -> Wide:
    """The squared difference that each index of a dim holds."""
    others = tuple(axis for axis in range(error.ndim) if axis != dim)
    squares: Wide = np.square(error).sum(axis=others)
    return squares


def _places(error: Wide) -> Iterator[str]:
    """Which indices of which dims hold the difference, where they are few."""
    for dim, length in enumerate(error.shape):
        held = _held_by(error, dim)
        total = held.sum()
        if length < 4 or not total > 0:
            continue
        most = np.argsort(-held, kind="stable")
        number = int(np.searchsorted(np.cumsum(held[most]), _HELD * total)) + 1
        if number <= _FEW * length:
            share = held[most[:number]].sum() / total
            shown = _listed(sorted(most[:number].tolist()))
            yield f"dim {dim}: {shown} of {length} holds {100 * share:.0f} % of the difference"


def _listed(indices: list[int]) -> str:
    """Indices as a span, a list, or their number."""
    word = _NAMES[len(indices) > 1]
    if len(indices) > 1 and indices[-1] - indices[0] == len(indices) - 1:
        return f"{word} {indices[0]} to {indices[-1]}"
    if len(indices) <= 4:
        return f"{word} {', '.join(map(str, indices))}"
    return f"{len(indices)} {word}"
