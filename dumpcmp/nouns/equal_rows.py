"""The rows of a step that both runs have bit for bit: columns, and a Row where one is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Extent, Judgement, Metrics, PairedBy, Row, Verdict

if TYPE_CHECKING:  # reports of other things need no numpy
    import numpy as np
    from numpy.typing import NDArray

EQUAL = Judgement(Verdict.PASS, origin=Origin.EQUAL)


class ValueName(NamedTuple):
    """What the rows of one value have in common, whatever the step."""

    model: str
    op: Op
    call: int
    slot: Slot
    dtype: str
    source: str


ValueFacts = tuple[ValueName, tuple[int, ...], Sequence[float]]  # name, shape, numbers


def facts_of(row: Row) -> ValueFacts | None:
    """What a Row says, where it says no more than that a value is the same under its own name."""
    metrics, key, shape = row.metrics, row.key, row.golden_shape
    if row.judgement != EQUAL or metrics is None or shape is None or key != row.target_key:
        return None
    if (row.paired_by, row.golden_dtype) != (PairedBy.KEY, row.target_dtype):
        return None
    if row.cause or row.layout or row.own or row.replay or row.reference_errors:
        return None
    if not (metrics.equal and metrics.num_finite and shape == row.target_shape):
        return None
    name = ValueName(key.model, key.op, key.call, key.slot, row.golden_dtype, row.source)
    return name, shape, (metrics.count, metrics.num_finite, *metrics.golden)


@dataclass(frozen=True, slots=True, eq=False)
class EqualRows(Sequence[Row]):
    """As a tuple of Rows, each of which is made when it is asked for."""

    model: str
    step: int
    names: Sequence[ValueName]
    shapes: Sequence[tuple[int, ...]]
    orders: NDArray[np.uint64]
    first: NDArray[np.uint32]  # of each row: which of `extents` is of its bytes
    extents: NDArray[np.float64]  # elements, those that are finite, and the fields of an Extent

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[at] for at in range(len(self))[place]]
        return self._row(range(len(self))[place])

    def _row(self, at: int) -> Row:
        name, shape = self.names[at], self.shapes[at]
        key = Key(self.model, self.step, name.op, name.call, name.slot)
        numbers = self.extents[self.first[at]].tolist()
        count, num_finite, low, high, mean, norm, num_nan, num_inf = numbers
        extent = Extent(low, high, mean, norm, int(num_nan), int(num_inf))
        return Row(
            key,
            int(self.orders[at]),
            EQUAL,
            Metrics.of_equals(int(count), int(num_finite), extent),
            golden_key=key,
            target_key=key,
            golden_dtype=name.dtype,
            target_dtype=name.dtype,
            golden_shape=shape,
            target_shape=shape,
            paired_by=PairedBy.KEY,
            source=name.source,
        )

    def facts(self) -> Iterator[ValueFacts]:
        """What the rows say, the numbers as `extents` has them, without a Row for each."""
        extents = self.extents[self.first].tolist()
        return zip(self.names, self.shapes, extents, strict=True)
