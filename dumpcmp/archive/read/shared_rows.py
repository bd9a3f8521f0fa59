"""Values of a step whose bytes lie in a shared part, told as if they were the step's own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import paths
from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.scan import read_part
from dumpcmp.archive.schema import ABSENT, NO_ROW, SHARED
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.spoken import counted

_OF_THE_BYTES = ("offset", "nbytes", "digest")  # the columns that a shared row gives


class SharedParts:
    """The shared parts of one model of one rank, each read when a row first leads there."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._listed: dict[int, Path] = {}
        self._found: dict[int, Contents | str] = {}

    def look_for(self, numbers: Iterable[int]) -> None:
        """Look which parts there are, if some of these `numbers` were not there before."""
        if not self._listed.keys() >= set(numbers):
            with suppress(ArchiveError):  # which is told where a part is asked for
                self._listed = paths.shared_in(self._model)

    def get(self, number: int, least: int = 0) -> Contents | str:
        """What the part holds, or why that is not known. It should have `least` rows.

        One that is still being written may have more of them than when it was read.
        """
        found = self._found.get(number)
        is_known = isinstance(found, Contents) and (found.sealed or len(found.rows) >= least)
        if found is None or not is_known:
            found = self._found[number] = self._read(number)
        return found

    def _read(self, number: int) -> Contents | str:
        path = self._listed.get(number)
        if path is None:
            return f"shared part {number - SHARED}, which holds its bytes, is missing"
        try:
            return read_part(path, self._model.name, -1, number - SHARED, [])
        except ArchiveError as error:
            return f"the shared part that holds its bytes cannot be read: {error.message}"


@dataclass(eq=False)
class _Telling:
    """Where the bytes of a part's rows lie, as far as that is elsewhere."""

    contents: Contents
    rows: NDArray[np.void]
    elsewhere: dict[int, tuple[Path, int]]
    datasets: dict[int, str]
    missing: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def tell(self, places: NDArray[np.intp], number: int, shared: SharedParts) -> None:
        """Say of the rows at `places`, which lead to one shared part, where their bytes lie."""
        wanted = self.rows["same"][places].astype(np.intp)
        holder = shared.get(number, int(wanted.max()) + 1)
        if isinstance(holder, str):
            self.problems.append(
                f"{self.contents.path}: of {counted(len(places), 'value')}, {holder}"
            )
            self.missing |= dict.fromkeys(places.tolist(), holder)
            return
        held = holder.rows
        there = np.zeros(len(places), bool)
        there[wanted < len(held)] = _are_values(held, wanted[wanted < len(held)])
        digests = self.rows["digest"][places]  # which nothing tells that was not sealed
        right = there.copy()
        right[there] = (digests[there] == b"") | (digests[there] == held["digest"][wanted[there]])
        for name in _OF_THE_BYTES:
            self.rows[name][places[right]] = held[name][wanted[right]]
        for place, row in zip(places[right].tolist(), wanted[right].tolist(), strict=True):
            self.elsewhere[place] = holder.path, int(held["offset"][row])
            if row in holder.datasets:
                self.datasets[place] = holder.datasets[row]
        for at in np.flatnonzero(~right).tolist():
            trouble = "holds another value" if there[at] else "which holds its bytes, was lost"
            told = f"row {wanted[at]} of shared part {number - SHARED}, {trouble}"
            self.missing[int(places[at])] = told


def _are_values(rows: NDArray[np.void], numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which of these rows have bytes of their own."""
    found: NDArray[np.bool_] = (rows["call"][numbers] != ABSENT) & (rows["same"][numbers] == NO_ROW)
    return found


def with_shared(contents: Contents, number: int, shared: SharedParts) -> Contents:
    """`contents` of part `number` of a step, whose shared values are told as if they lay there.

    What holds no bytes any more is `missing`; links to it within the step stay links.
    """
    rows = contents.rows
    leading = np.flatnonzero((rows["part"] >= SHARED) & (rows["call"] != ABSENT))
    if not leading.size:
        return contents
    telling = _Telling(contents, rows.copy(), dict(contents.elsewhere), dict(contents.datasets))
    leading = leading[np.argsort(rows["part"][leading], kind="stable")]
    holders, starts = np.unique(rows["part"][leading], return_index=True)
    shared.look_for(holders.tolist())
    for holder, places in zip(holders.tolist(), np.split(leading, starts[1:]), strict=True):
        telling.tell(places, holder, shared)
    telling.rows["part"][leading], telling.rows["same"][leading] = number, NO_ROW
    telling.rows["header"][leading] = 0
    return replace(
        contents, rows=telling.rows, elsewhere=telling.elsewhere, datasets=telling.datasets,
        missing=telling.missing, problems=(*contents.problems, *telling.problems),
    )  # fmt: skip
