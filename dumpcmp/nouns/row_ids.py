"""Which request and position each row of a step is: a row is one token of the model's input.

Engines lay the same tokens out in other ways: other batches, padding, packing, chunks, decoding
one by one. Each step of a capture that knows its rows has a Call of a reserved op, whose arguments
hold them as JSON in runs: a request, its first position, and how many rows follow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import EFFECTS, Op
from dumpcmp.nouns.record import Call

ROWS = Op(f"{EFFECTS}/rows")  # the reserved op
TARGET = "dumpcmp.rows"  # of its Calls: no function that could be run again
MOST_ROWS = 1 << 40  # of a step
MOST_RUNS = 40_000  # that one Call tells of: its text is bounded

RowId = tuple[str, int]  # a request, and a position in it
RunOfRows = tuple[str | None, int, int]  # a request, or None for padding; first position; rows


@dataclass(frozen=True, slots=True)
class RowIds:
    """The rows of one step, as they lie in its inputs, row-major over the dims in `shape`."""

    shape: tuple[int, ...]  # the token dims of the inputs: [batch, length], or [tokens]
    runs: tuple[RunOfRows, ...]
    source: str = ""  # the arguments that told, such as "position_ids, attention_mask"

    @classmethod
    def of(cls, shape: Sequence[int], ids: Iterable[RowId | None], source: str = "") -> RowIds:
        """What each row is, one after the other; None is padding."""
        runs: list[RunOfRows] = []
        for each in ids:
            request, position = each if each is not None else (None, 0)
            if runs and runs[-1][0] == request:
                name, first, count = runs[-1]
                if name is None or position == first + count:
                    runs[-1] = name, first, count + 1
                    continue
            runs.append((request, position, 1))
        return cls(tuple(shape), tuple(runs), source)

    def __iter__(self) -> Iterator[RowId | None]:
        for request, first, count in self.runs:
            for position in range(first, first + count):
                yield None if request is None else (request, position)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def arguments(self) -> str:
        """The JSON that a Call holds."""
        tree = {"shape": self.shape, "runs": self.runs, "source": self.source}
        return json.dumps(tree, separators=(",", ":"))

    @classmethod
    def read(cls, call: Call) -> RowIds:
        """The reverse of `arguments`; ArchiveError where they are damaged."""
        try:
            tree = json.loads(call.arguments)
            shape = tuple(int(size) for size in tree["shape"])
            runs = tuple(
                (None if name is None else str(name), int(first), int(count))
                for name, first, count in tree["runs"]
            )
            counts, size = [count for *_, count in runs], math.prod(shape)
            is_sound = min(*shape, *counts, 0) == 0 and size <= MOST_ROWS
            if not is_sound or sum(counts) != size:
                raise ValueError(f"{len(runs)} runs do not make up the shape {list(shape)}")
            return cls(shape, runs, str(tree.get("source", "")))
        except (
            ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
        ) as error:  # fmt: skip
            raise ArchiveError(
                f"{call.site.place}: what it tells of rows is damaged: {error}",
                hint="dumpcmp audit says which part of the archive has it",
            ) from None


def dim_of_rows(shape: Sequence[int], ids: RowIds) -> tuple[int, int] | None:
    """The dims of a value that its rows lie along: the first of them, and how many there are.

    None where no run of dims has the sizes of the token dims, or only ones of size one do.
    """
    wanted = ids.shape
    for tried in (wanted, (math.prod(wanted),)):
        for first in range(len(shape) - len(tried) + 1):
            if tuple(shape[first : first + len(tried)]) == tried:
                return first, len(tried)
    return None
