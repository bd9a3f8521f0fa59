"""Pairs rows of two runs by request and position, and finds ops that treat equal rows unequally."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row_ids import RowId, RowIds
from dumpcmp.nouns.value import DTYPES, Kind

CallName = tuple[Op, int]  # an op and the number of its call
RowHash = tuple[int, int]  # how many bytes a row has, and a number for them
NameOfValue = tuple[Op, int, str]  # and a slot


@dataclass(frozen=True, slots=True)
class RowAxes:
    """Along which dims of a value its rows lie: batch, tokens, and what those attend to.

    `tokens` alone is a dim of all tokens, or one that is the same for each sequence.
    """

    batch: int | None
    tokens: int
    attended: int | None = None
    is_flat: bool = False  # the dim of tokens has those of all sequences

    @classmethod
    def of(cls, shape: Sequence[int], rows: tuple[int, int]) -> RowAxes | None:
        """Where a batch of several sequences of several tokens lies in `shape`; None if nowhere."""
        batch, length = rows
        sizes = list(shape)
        if batch * length in sizes and batch > 1:
            return cls(None, sizes.index(batch * length), is_flat=True)
        first = sizes.index(batch) if batch in sizes and batch > 1 else None
        start = 0 if first is None else first + 1
        found = [i for i in range(start, len(sizes)) if sizes[i] == length]
        if not found:
            return None
        return cls(first, found[0], found[1] if len(found) > 1 else None)


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence of a step: its name, and the position of each of its tokens there."""

    name: str | None
    positions: tuple[int | None, ...]

    @property
    def origin(self) -> int:
        """The index that position 0 has, or would have, among the tokens."""
        for index, position in enumerate(self.positions):
            if position is not None:
                return index - position
        return 0


class RunRows:
    """A recorded run: its values by op, call and slot, and which rows they have."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.values: dict[NameOfValue, list[Record]] = defaultdict(list)
        self.order: dict[CallName, int] = {}
        self._rows: dict[int, list[SequenceRows]] = {}
        self.model = archive.models[0]
        for step in archive.steps(self.model):
            ids = archive.rows_at(self.model, step).get(0)
            if ids is None:
                continue
            self._rows[step] = sequences_of(ids)
            for key in archive.keys_of(self.model, step):
                record = archive[key]
                if _is_compared(key, record):
                    self.values[key.op, key.call, key.slot].append(record)
                    self.order.setdefault((key.op, key.call), record.order)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Sequences and tokens of the first step."""
        first = next(iter(self._rows.values()), [])
        return len(first), len(first[0].positions) if first else 0

    def hashes(self, name: NameOfValue, axes: RowAxes) -> dict[RowId, RowHash] | None:
        """A number for the bytes of each row of a value; None where rows lie otherwise here.

        Of a value that has all tokens so far, such as keys from a cache, all of them are rows.
        """
        found: dict[RowId, RowHash] = {}
        for record in self.values.get(name, ()):
            sequences = self._rows[record.key.step]
            bits = self.archive.load(record).bits
            some = _rows_in(bits, axes, sequences)
            if some is None:
                return None
            found |= some
        return found or None


def _is_compared(key: Key, record: Record) -> bool:
    dtype = DTYPES.get(record.dtype)
    is_side = key.slot.is_output or (key.slot.is_input and not key.slot.is_weight)
    is_float = dtype is not None and dtype.kind is Kind.FLOAT
    return is_side and is_float and record.kept is Kept.FULL


def sequences_of(ids: RowIds) -> list[SequenceRows]:
    """The rows of a step as sequences, one for each row of its batch."""
    flat = list(ids)
    batch, length = ids.shape if len(ids.shape) == 2 else (1, *ids.shape)
    found = []
    for row in range(batch):
        own = flat[row * length : (row + 1) * length]
        name = next((each[0] for each in own if each is not None), None)
        found.append(SequenceRows(name, tuple(None if each is None else each[1] for each in own)))
    return found


def _rows_in(
    bits: NDArray[np.generic], axes: RowAxes, sequences: Sequence[SequenceRows]
) -> dict[RowId, RowHash] | None:
    if bits.ndim <= max(axes.tokens, axes.batch or 0, axes.attended or 0):
        return None
    length = len(sequences[0].positions)
    parts = _parts(bits, axes, len(sequences), length)
    if parts is None or parts[0].shape[0] < length:
        return None
    removed = int(axes.batch is not None and axes.batch < axes.tokens)
    attended = None if axes.attended is None else axes.attended - removed
    found: dict[RowId, RowHash] = {}
    for sequence, part in zip(sequences, parts, strict=True):
        found |= _rows_of_one(part, sequence, attended)
    return found


def _parts(
    bits: NDArray[np.generic], axes: RowAxes, batch: int, length: int
) -> list[NDArray[np.generic]] | None:
    """What each sequence has of a value, its tokens first; None where the value has other sizes."""
    if axes.is_flat:
        if bits.shape[axes.tokens] != batch * length:
            return None
        moved = np.moveaxis(bits, axes.tokens, 0)
        return [moved[i * length : (i + 1) * length] for i in range(batch)]
    if axes.batch is None:
        return [np.moveaxis(bits, axes.tokens, 0)] * batch
    if bits.shape[axes.batch] != batch:
        return None
    whole, tokens = np.moveaxis(bits, axes.batch, 0), axes.tokens - (axes.batch < axes.tokens)
    return [np.moveaxis(whole[i], tokens, 0) for i in range(batch)]


def _rows_of_one(
    part: NDArray[np.generic], sequence: SequenceRows, attended: int | None
) -> Iterator[tuple[RowId, RowHash]]:
    """The rows of one sequence. Where there are more tokens than the step has, they are all so far.

    Of a dim of attended tokens a row has those up to its own: what comes later is masked.
    """
    length = len(sequence.positions)
    if sequence.name is None:
        return
    origin = part.shape[0] - length + sequence.origin
    for index in range(part.shape[0]):
        is_own = part.shape[0] == length
        position = sequence.positions[index] if is_own else index - origin
        if position is None or position < 0:
            continue
        row = part[index]
        if attended is not None:
            first = row.shape[attended - 1] - length + sequence.origin
            seen = range(max(0, first), max(0, min(first + position + 1, row.shape[attended - 1])))
            row = np.take(row, seen, attended - 1)
        octets = np.ascontiguousarray(row).tobytes()
        yield (sequence.name, position), (len(octets), xxh3_64_intdigest(octets))


@dataclass(frozen=True, slots=True)
class Unequal:
    """An op whose rows had equal inputs and gave other outputs, or of which that is not known."""

    name: CallName
    slot: str
    rows: tuple[RowId, ...]
    is_known: bool  # that the inputs of these rows are equal


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs, row by row."""

    num_rows: int  # of values that have rows on both sides
    num_unpaired: int  # rows of the reference that the other run has not
    num_values: int
    unequal: tuple[Unequal, ...]


def compare_rows(
    reference: RunRows, other: RunRows, axes: Mapping[NameOfValue, RowAxes]
) -> Compared:
    """Hold the rows of each op against each other, bit by bit, in the order of execution."""
    num_rows, num_unpaired, num_values = 0, 0, 0
    found: list[Unequal] = []
    by_call: dict[CallName, list[NameOfValue]] = defaultdict(list)
    for name in axes:
        by_call[name[0], name[1]].append(name)
    for call in sorted(by_call, key=lambda call: reference.order.get(call, 0)):
        state = _CallRows()
        for name in by_call[call]:
            one, two = reference.hashes(name, axes[name]), other.hashes(name, axes[name])
            if one is None or two is None or not _are_alike(one, two):
                state.is_known &= name[2].startswith("output") or _is_mask(name[2])
                continue
            shared = one.keys() & two.keys()
            unequal = {row for row in shared if one[row] != two[row]}
            if name[2].startswith("output"):
                num_rows, num_values = num_rows + len(shared), num_values + 1
                num_unpaired += len(one.keys() - two.keys())
                state.outputs[name[2]] = unequal
            elif not _is_mask(name[2]):
                state.spoil(unequal)
        found += state.unequal(call)
    return Compared(num_rows, num_unpaired, num_values, tuple(found))


def _are_alike(one: Mapping[RowId, RowHash], two: Mapping[RowId, RowHash]) -> bool:
    """Whether rows of both have the same size; of others the layout is another."""
    return all(one[row][0] == two[row][0] for row in one.keys() & two.keys())


def _is_mask(slot: str) -> bool:
    """Whether an input says what may be attended to, which padding and chunks change."""
    return "mask" in slot


class _CallRows:
    """What is known of one call while its values are looked at."""

    def __init__(self) -> None:
        self.is_known = True  # all inputs could be paired
        self.outputs: dict[str, set[RowId]] = {}
        self._first_spoilt: dict[str, int] = {}  # of each request: its first unequal input row

    def spoil(self, rows: set[RowId]) -> None:
        """Inputs of these rows differ, and so may outputs of all later rows that attend to them."""
        for request, position in rows:
            before = self._first_spoilt.get(request, position)
            self._first_spoilt[request] = min(before, position)

    def unequal(self, call: CallName) -> Iterator[Unequal]:
        for slot, rows in self.outputs.items():
            clean = sorted(
                (request, position) for request, position in rows
                if position < self._first_spoilt.get(request, position + 1)
            )  # fmt: skip
            if clean:
                yield Unequal(call, slot, tuple(clean), self.is_known)
                return


def axes_of(run: RunRows) -> dict[NameOfValue, RowAxes]:
    """Where the rows of each value lie, by a run of the whole batch in one step."""
    found = {}
    for name, records in run.values.items():
        axes = RowAxes.of(records[0].shape, run.shape)
        if axes is not None:
            found[name] = axes
    return found


def first_unequal(compared: Compared) -> Unequal | None:
    """The first op that treated equal rows unequally: the innermost, and the earliest of those."""
    known = [each for each in compared.unequal if each.is_known]
    for each in known:
        op = each.name[0]
        if not (op.is_module and any(other.name[0].is_inside(op) for other in known)):
            return each
    return next(iter(compared.unequal), None)
