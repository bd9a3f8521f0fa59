"""The rows of a long comparison: beyond a number of them in a file, a few at a time in memory."""

from __future__ import annotations

import math
import os
import weakref
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntFlag
from functools import lru_cache, partial
from tempfile import TemporaryFile
from typing import overload

from dumpcmp.nouns.equal_rows import EqualRows
from dumpcmp.nouns.files import read_at
from dumpcmp.nouns.key import ROOT, Key, Op, Slot
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import FAILING, Row, Verdict, Why
from dumpcmp.nouns.rowtext import pack_rows, unpack_rows

AT_ONCE = 1024  # rows that are read together
KEPT = 65_536  # rows that stay in memory as they are: some 1.5 KB each
_VERDICTS = tuple(Verdict)
_NUMBER = {verdict: number for number, verdict in enumerate(_VERDICTS)}


class Trait(IntFlag):
    """What is asked of rows so often that it is known without reading them."""

    END = 1  # what the model gave out in the end: results, and gradients of parameters
    APART = 2  # it was measured, and its bits are not golden's
    VOID = 4  # there was no number to compare
    BLIND = 8  # it passes by a rule that other numbers contradict
    CALL = 16  # it fails for how it was called
    MEASURED = 32  # it has numbers
    HEIR = 64  # it only inherits from a root


_OF_WHY = {Why.VOID: int(Trait.VOID), Why.BLIND: int(Trait.BLIND), Why.CALL: int(Trait.CALL)}
_END, _APART, _MEASURED, _HEIR = map(int, (Trait.END, Trait.APART, Trait.MEASURED, Trait.HEIR))


def _is_end(op: Op, slot: Slot) -> bool:
    """Whether a model gave it out in the end, or the run left it behind."""
    return slot.is_parameter_gradient or (op == ROOT and slot.is_output) or op.is_effect


def traits_of(row: Row) -> int:
    """All traits of one row. It is asked for every row, and flags add slowly."""
    found = _OF_WHY.get(row.judgement.why, 0)
    if _is_end(row.key.op, row.key.slot):
        found |= _END
    if row.metrics is not None:
        found |= _MEASURED if row.judgement.origin is Origin.EQUAL else _MEASURED | _APART
    if row.cause is not None:
        found |= _HEIR
    return found


class Shown(Sequence[Row]):
    """Some rows of a longer sequence, which are read when they are looked at."""

    def __init__(self, read: Callable[[int], Row], places: array[int]) -> None:
        self._read, self._places = read, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Shown: ...
    def __getitem__(self, place: int | slice) -> Row | Shown:
        if isinstance(place, slice):
            return Shown(self._read, self._places[place])
        return self._read(self._places[place])


class _Chunks:
    """Chunks of rows in memory, and in a file that has no name and is closed when they go."""

    def __init__(self) -> None:
        self._places: list[Sequence[Row] | slice] = []  # of the file, where it lies there
        self._descriptor = -1  # of the file, once there is one
        self._end = 0  # of the file

    def __len__(self) -> int:
        return len(self._places)

    def append(self, rows: Sequence[Row], *, is_kept: bool) -> None:
        """Add a chunk, which is kept in memory, or else stored."""
        self._places.append(rows if is_kept else self._stored(rows))

    def read(self, number: int) -> Sequence[Row]:
        """The rows of one chunk."""
        place = self._places[number]
        if not isinstance(place, slice):
            return place
        return unpack_rows(read_at(self._descriptor, place.stop - place.start, place.start))

    def _stored(self, rows: Sequence[Row]) -> slice:
        """Where in the file `rows` are now."""
        if self._descriptor < 0:
            file = TemporaryFile(prefix="dumpcmp-")  # noqa: SIM115 (it lives as long as the rows)
            weakref.finalize(self, file.close)
            self._descriptor = file.fileno()
        content = memoryview(pack_rows(rows))
        place, start = self._end, self._end
        self._end += len(content)
        while content:
            written = os.pwrite(self._descriptor, content, place)
            content, place = content[written:], place + written
        return slice(start, self._end)


class Rows(Sequence[Row]):
    """Rows in order of execution, as a tuple would have them.

    The first `KEPT` of them are kept. Others lie in a file, and some twenty bytes of each stay in
    memory.
    """

    def __init__(self) -> None:
        self._starts = [0]  # the first row of each chunk, and where the next one begins
        self._chunks = _Chunks()
        self._verdicts = bytearray()
        self._traits = bytearray()
        self._errors = array("d")  # rel_l2, NaN where there is none
        self._heirs = Counter[Key]()  # failing rows by their causes
        self.held = Counter[str]()  # values of each side, and those of them that are paired
        self.own: dict[str, None] = {}  # the columns of a user's own numbers
        self._chunk = lru_cache(4)(self._chunks.read)

    def extend(self, rows: Sequence[Row]) -> None:
        """Add `rows`, which are all of some steps."""
        if isinstance(rows, EqualRows):
            self._append_equal(rows)
            return
        for start in range(0, len(rows), AT_ONCE):
            self._append(rows[start : start + AT_ONCE])
        self.held += held_by(rows)
        self.own |= dict.fromkeys(name for row in rows for name, _ in row.own)
        self._heirs.update(row.cause for row in rows if row.cause and row.verdict.fails)

    def _append(self, rows: Sequence[Row]) -> None:
        self._chunks.append(rows, is_kept=self._starts[-1] + len(rows) <= KEPT)
        self._starts.append(self._starts[-1] + len(rows))
        self._verdicts += bytes([_NUMBER[row.judgement.verdict] for row in rows])
        self._traits += bytes(map(traits_of, rows))
        self._errors.extend(math.nan if (m := row.metrics) is None else m.rel_l2 for row in rows)

    def _append_equal(self, rows: EqualRows) -> None:
        """Add what is known of all rows alike; columns are small, and stay in memory."""
        count = len(rows)
        self._chunks.append(rows, is_kept=True)
        self._starts.append(self._starts[-1] + count)
        self._verdicts += bytes([_NUMBER[Verdict.PASS]]) * count
        ends = (_is_end(name.op, name.slot) for name in rows.names)
        self._traits += bytes(_MEASURED | _END if is_end else _MEASURED for is_end in ends)
        self._errors.extend([0.0] * count)
        sides = ("golden", "golden paired", "mine", "mine paired")
        self.held += Counter(dict.fromkeys(sides, count))

    def _at(self, place: int) -> Row:
        number = bisect_right(self._starts, place) - 1
        return self._chunk(number)[place - self._starts[number]]

    def __len__(self) -> int:
        return len(self._verdicts)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Shown: ...
    def __getitem__(self, place: int | slice) -> Row | Shown:
        found = range(len(self))[place]
        return self._at(found) if isinstance(found, int) else self._shown(found)

    def chunks(self) -> Iterator[Sequence[Row]]:
        """The rows, some at a time."""
        return map(self._chunks.read, range(len(self._chunks)))

    def __iter__(self) -> Iterator[Row]:
        for chunk in self.chunks():
            yield from chunk

    def _shown(self, places: Iterable[int]) -> Shown:
        return Shown(self._at, array("Q", places))

    def having(self, verdicts: Collection[Verdict]) -> Shown:
        """The rows with one of `verdicts`."""
        wanted = frozenset(_NUMBER[verdict] for verdict in verdicts)
        return self._shown(at for at, number in enumerate(self._verdicts) if number in wanted)

    def marked(self, trait: Trait) -> Shown:
        """The rows that have any of `trait`."""
        wanted = int(trait)
        return self._shown(at for at, traits in enumerate(self._traits) if traits & wanted)

    def at(self, places: Iterable[int]) -> Shown:
        """The rows at `places`."""
        return self._shown(places)

    def num_heirs(self, root: Key) -> int:
        """How many failing rows only inherit from `root`."""
        return self._heirs[root]

    def suspects(self) -> Iterator[tuple[float, Callable[[], Row]]]:
        """As the function of that name says."""
        failing = frozenset(_NUMBER[verdict] for verdict in FAILING)
        wrong = _NUMBER[Verdict.NONFINITE]
        for at, (number, traits) in enumerate(zip(self._verdicts, self._traits, strict=True)):
            if number in failing and traits & (_MEASURED | _HEIR) == _MEASURED:
                error = math.inf if number == wrong else self._errors[at]
                yield math.inf if math.isnan(error) else error, partial(self._at, at)

    @property
    def verdicts(self) -> dict[Verdict, int]:
        """How many rows got which verdict, those first that came first."""
        found = {number: self._verdicts.find(number) for number in range(len(_VERDICTS))}
        there = sorted((at, number) for number, at in found.items() if at >= 0)
        return {_VERDICTS[number]: self._verdicts.count(number) for _, number in there}


def having(rows: Sequence[Row], *verdicts: Verdict) -> Sequence[Row]:
    """Those of `rows` that have one of `verdicts`."""
    if isinstance(rows, Rows):
        return rows.having(verdicts)
    return [row for row in rows if row.verdict in verdicts]


def marked(rows: Sequence[Row], trait: Trait) -> Sequence[Row]:
    """Those of `rows` that have any of `trait`."""
    if isinstance(rows, Rows):
        return rows.marked(trait)
    wanted = int(trait)
    return [row for row in rows if traits_of(row) & wanted]


def num_heirs(rows: Sequence[Row], root: Key) -> int:
    """How many failing ones of `rows` only inherit from `root`."""
    if isinstance(rows, Rows):
        return rows.num_heirs(root)
    return sum(row.cause == root for row in rows if row.verdict.fails)


def suspects(rows: Sequence[Row]) -> Iterator[tuple[float, Callable[[], Row]]]:
    """Failing rows with numbers that do not only inherit: their badness, and how to read them.

    That is their rel_l2, and infinite where it is none.
    """
    if isinstance(rows, Rows):
        yield from rows.suspects()
        return
    for row in rows:
        if row.verdict.fails and row.metrics is not None and not row.cause:
            is_wrong = row.verdict is Verdict.NONFINITE or math.isnan(row.metrics.rel_l2)
            yield math.inf if is_wrong else row.metrics.rel_l2, partial(_itself, row)


def _itself(row: Row) -> Row:
    return row


def held_by(rows: Sequence[Row]) -> Counter[str]:
    """How many values each side has, and how many of them are paired."""
    if isinstance(rows, Rows):
        return rows.held
    found: Counter[str] = Counter()
    for name, side in (("golden", "golden_key"), ("mine", "target_key")):
        held = {getattr(row, side): bool(row.paired_by) for row in rows}
        held.pop(None, None)  # a value of the other side may be paired by what it is linked to
        found += Counter({name: len(held), f"{name} paired": sum(held.values())})
    return found
