"""Summaries: what is kept of a tensor, taken in one pass over its elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add, attrgetter
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dumpcmp.measure.blocks import BLOCK, FLOAT64, nonfinite_counts, read, scratch_of, width_of
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Extent
from dumpcmp.nouns.value import Dtype, Integers, Kind, Portion, Value
from dumpcmp.summary.checksums import added
from dumpcmp.summary.sketch import SIZES, Accumulator, Reals, Sketch, Totals, runs

RAW_LIMIT = 512  # a tensor of so few elements is smaller than its sketch, and is kept whole
SEGMENT_SIZE = 64  # buckets of one segment's sketch

AS_THEY_LIE = frozenset({"float32", "float64", "bfloat16"})  # what Accumulator.absorb reads
SHORT = 2048  # shards whose runs are shorter on average are placed element by element


@dataclass(frozen=True, slots=True)
class Recipe:
    """How summaries are made: what must be the same on both sides for sketches to compare."""

    size: int = 512  # buckets of the sketch; 0 keeps none
    seed: int = 0
    num_hashes: int = 1  # 3 or more find the place of the largest difference
    segments: int = 0  # sketches of their own for so many ranges of the leading dims


DEFAULT = Recipe()


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Extremes, moments, counts, digest and sketch of a tensor whose elements are gone.

    Extremes, sums and sketch are those of the finite elements; the others are counted. A
    complex tensor counts as its real view, with a last dim of two.
    """

    dtype: str
    shape: tuple[int, ...]
    count: int  # elements, of the real view where complex
    min: float = math.nan
    max: float = math.nan
    sum: float = 0.0
    sum_squares: float = 0.0
    num_nan: int = 0
    num_posinf: int = 0
    num_neginf: int = 0
    num_zero: int = 0
    digest: str = ""  # xxh3_128 of the dense bytes, hexadecimal; "" where it was not taken
    sketch: Sketch | None = None
    segments: tuple[Sketch, ...] = ()
    whole: tuple[int, ...] = ()  # shape of the tensor whose flat index keys the sketch
    reduced: Mapping[str, float] = field(default_factory=dict)  # the user's own numbers
    reduce_problem: str = ""  # why the user's reduction gave none
    checksum: str = ""  # hexadecimal; "" where it was not taken: see `checksums`

    @property
    def num_finite(self) -> int:
        """Elements that are numbers."""
        return self.count - self.num_nan - self.num_posinf - self.num_neginf

    @property
    def mean(self) -> float:
        """Mean of the finite elements."""
        return self.sum / self.num_finite if self.num_finite else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation of the finite elements; NaN where squares overflowed."""
        if not self.num_finite:
            return math.nan
        return math.sqrt(max(self.sum_squares / self.num_finite - self.mean * self.mean, 0.0))

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite elements."""
        return math.sqrt(self.sum_squares)

    @property
    def extent(self) -> Extent:
        """The summary as the report shows it."""
        num_inf = self.num_posinf + self.num_neginf
        return Extent(self.min, self.max, self.mean, self.norm, self.num_nan, num_inf)

    @property
    def recipe(self) -> Recipe:
        """How this summary's sketch was made."""
        if self.sketch is None:
            return Recipe(size=0)
        sketch = self.sketch
        return Recipe(sketch.size, sketch.seed, sketch.num_hashes, len(self.segments))


_NAMES = tuple(field.name for field in fields(Totals))
_totals_of = attrgetter(*_NAMES)


def _stated(totals: Totals) -> dict[str, Any]:
    """The fields of a Summary that `totals` give: extremes only where something was finite."""
    stated = dict(zip(_NAMES, _totals_of(totals), strict=True))
    return stated if totals.min <= totals.max else stated | {"min": math.nan, "max": math.nan}


def summarise(
    value: Value,
    recipe: Recipe = DEFAULT,
    portion: Portion | None = None,
    digest: str | None = None,
) -> Summary:
    """Summarise `value` in one pass; `portion` says where a shard lies in its whole.

    `digest` spares the pass that takes it, where it is known.
    """
    if portion is not None and portion.shape != value.shape:
        raise CheckError(
            f"a shard of shape {value.shape} does not fill a portion of {portion.shape}"
        )
    line, whole = value.line(), value.shape
    if value.dtype.kind is Kind.COMPLEX:
        portion, whole = portion.in_parts() if portion else None, (*whole, 2)
    held = runs(portion) if portion else (np.zeros(1, np.int64), np.array([line.numel]))
    whole = portion.whole if portion else whole
    totals, cuts = Totals(), borders(whole, recipe.segments)
    size = recipe.size or SIZES[0]
    sinks = [Accumulator(size, recipe.seed, recipe.num_hashes) for _ in cuts[1:]]
    with np.errstate(over="ignore"):  # of squares beyond float64, whose norm is then infinite
        for which, start, bits in _walk(line.bits, held, cuts):
            for found in _added(bits, line.dtype, start, sinks[which]):
                totals += found
    parts = tuple(sink.sketch() for sink in sinks) if recipe.size else ()
    return Summary(
        dtype=value.dtype.name,
        shape=value.shape,
        count=line.numel,
        digest=digest_of(value) if digest is None else digest,
        sketch=_sum(parts),
        segments=tuple(p.folded(SEGMENT_SIZE) for p in parts) if recipe.segments else (),
        whole=whole,
        **_stated(totals),
    )


def digest_of(value: Value) -> str:
    """The xxh3_128 of the dense bytes of `value`, hexadecimal."""
    return xxhash.xxh3_128(np.ascontiguousarray(value.bits).data).hexdigest()


def borders(whole: tuple[int, ...], segments: int) -> list[int]:
    """Flat indices that part the whole's rows into `segments` ranges; one range if there are 0."""
    numel = math.prod(whole)
    row = whole[-1] if len(whole) > 1 else 1
    num_rows = numel // row if row else 0
    count = segments or 1
    return [row * (num_rows * g // count) for g in range(count)] + [numel]


def _walk(
    flat: NDArray[np.generic], held: tuple[Integers, Integers], borders: list[int]
) -> Iterator[tuple[int, int | Integers, NDArray[np.generic]]]:
    """Bits by piece: the segment, where they lie in the whole (start or indices), themselves."""
    starts, lengths = held
    if starts.size > 1 and flat.size < SHORT * starts.size:
        yield from _walk_scattered(flat, starts, lengths, borders)
        return
    done = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        for which, (low, high) in enumerate(itertools.pairwise(borders)):
            first, last = max(start, low), min(start + length, high)
            if first < last:
                yield which, first, flat[done + first - start : done + last - start]
        done += length


def _walk_scattered(
    flat: NDArray[np.generic], starts: Integers, lengths: Integers, borders: list[int]
) -> Iterator[tuple[int, Integers, NDArray[np.generic]]]:
    ends = np.cumsum(lengths)
    jumps = starts - (ends - lengths)  # from a flat index of the shard to that of the whole
    for low in range(0, flat.size, BLOCK):
        local = np.arange(low, min(low + BLOCK, flat.size), dtype=np.int64)
        indices = local + jumps[np.searchsorted(ends, local, side="right")]
        segment = np.searchsorted(borders, indices, side="right") - 1
        for which in np.unique(segment).tolist():
            chosen = segment == which
            yield which, indices[chosen], flat[local[chosen]]


def _added(
    bits: NDArray[np.generic], dtype: Dtype, start: int | Integers, sink: Accumulator
) -> Iterator[Totals]:
    """Count and sum the numbers in `bits`, and sketch them where they lie in the whole."""
    if isinstance(start, int) and dtype.name in AS_THEY_LIE:
        found = sink.absorb(bits, start)
        if found is not None:
            yield found
            return
    line = Value(dtype, bits)
    for low in range(0, line.numel, BLOCK):  # so much is in the cache
        span = slice(low, low + BLOCK)
        numbers = read(line, span, width_of(line.dtype))
        yield _added_few(numbers, start + low if isinstance(start, int) else start[span], sink)


def _added_few(numbers: Reals, start: int | Integers, sink: Accumulator) -> Totals:
    """Add a few `numbers`, whatever they are; what is not finite counts as 0 in the sketch."""
    found = sink.absorb(numbers, start) if isinstance(start, int) else None
    if found is not None:
        return found
    low, high = float(np.minimum.reduce(numbers)), float(np.maximum.reduce(numbers))
    without = low > 0 or high < 0  # which NaN is not
    num_zero = 0 if without else int(np.count_nonzero(np.equal(numbers, 0)))
    odd = (0, 0, 0)
    if not (math.isfinite(low) and math.isfinite(high)):
        odd, real = nonfinite_counts(numbers), np.isfinite(numbers)
        low = float(numbers.min(where=real, initial=math.inf))
        high = float(numbers.max(where=real, initial=-math.inf))
        numbers = np.where(real, numbers, numbers.dtype.type(0))
    wide = scratch_of(FLOAT64).spare[: numbers.size]
    np.copyto(wide, numbers)
    if isinstance(start, int):
        sink.add(wide, start)
    else:
        sink.scatter(wide, start)
    return Totals(low, high, float(np.add.reduce(wide)), float(np.dot(wide, wide)), num_zero, *odd)


def _sum(parts: Sequence[Sketch]) -> Sketch | None:
    return reduce(add, parts) if parts else None


def join(shards: Sequence[Summary], shape: tuple[int, ...]) -> Summary:
    """The Summary of the whole of `shape` whose disjoint `shards` these are."""
    finite = Totals()  # to which NaN extremes add nothing
    for shard in shards:
        finite += Totals(*_totals_of(shard))
    return Summary(
        dtype=shards[0].dtype,
        shape=shape,
        count=sum(s.count for s in shards),
        sketch=_sum(_sketches(shards)),
        segments=_join_segments(shards),
        whole=shards[0].whole,
        checksum=added(shard.checksum for shard in shards),
        **_stated(finite),
    )


def join_partial(terms: Sequence[Summary]) -> Summary:
    """The Summary of the sum of `terms`: its sketch and sum are known, its extremes are not."""
    first = terms[0]
    sketch = _sum(_sketches(terms))
    return Summary(
        dtype=first.dtype,
        shape=first.shape,
        count=first.count,
        sum=math.fsum(s.sum for s in terms),
        sum_squares=sketch.norm() ** 2 if sketch else math.nan,
        num_nan=max(s.num_nan for s in terms),
        num_posinf=max(s.num_posinf for s in terms),
        num_neginf=max(s.num_neginf for s in terms),
        sketch=sketch,
        segments=_join_segments(terms),
        whole=first.whole,
    )


def _sketches(summaries: Sequence[Summary]) -> list[Sketch]:
    wholes = {s.whole for s in summaries}
    if len(wholes) > 1:
        raise CheckError(
            f"sketches keyed on wholes of the shapes {sorted(wholes)} do not add up",
            hint="compact all ranks of a run with the same layouts",
        )
    held = [s.sketch for s in summaries if s.sketch is not None]
    return held if len(held) == len(summaries) else []


def _join_segments(summaries: Sequence[Summary]) -> tuple[Sketch, ...]:
    held = [s.segments for s in summaries]
    if len(set(map(len, held))) > 1:
        return ()
    return tuple(reduce(add, column) for column in zip(*held, strict=True))
