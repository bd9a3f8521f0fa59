"""Which rows and columns of golden's weights are in mine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.spoken import spans
from dumpcmp.weights.checkpoint_files import Weight
from dumpcmp.weights.matrices import flat_shape
from dumpcmp.weights.weight_matching import MatchedWeight


@dataclass(slots=True)
class CoveredRows:
    """Which rows of a weight of golden are in mine, and which equal pieces of its columns."""

    rows: NDArray[np.bool_]
    columns: dict[int, set[int]]

    @property
    def missing(self) -> str:
        """What is in no weight of mine."""
        if not self.rows.all():
            absent = spans(map(int, np.flatnonzero(~self.rows)), 4)
            return f"rows {absent} of {self.rows.size} are not in mine"
        for of, numbers in self.columns.items():
            if len(numbers) < of:
                absent = spans(set(range(of)) - numbers, 4)
                return f"of {of} equal parts of its columns, mine lacks {absent}"
        return ""


class Coverage:
    """What of golden's `weights` has been found in mine so far."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights
        self._covered: dict[str, CoveredRows] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._covered

    def missing(self, name: str) -> str:
        """What of a weight that was found is in no weight of mine."""
        return self._covered[name].missing

    def add(self, judged: MatchedWeight) -> None:
        """Note the rows and columns that a weight of mine has."""
        for fit in judged.fits:
            first = 0
            for part in fit.golden.parts:
                rows = fit.layout.rows
                own = rows[(rows >= first) & (rows < first + part.rows)] - first
                covered = self._covering(part.name)
                weight = self._weights[part.name]
                height = flat_shape(weight.shape)[0] // (weight.shape[0] if part.number is not None
                                                         else 1)  # fmt: skip
                covered.rows[own + part.first_row + height * (part.number or 0)] = True
                if fit.layout.by_columns:
                    numbers = covered.columns.setdefault(fit.layout.shards, set())
                    numbers.add(fit.layout.shard)
                first += part.rows

    def _covering(self, name: str) -> CoveredRows:
        if name not in self._covered:
            rows = np.zeros(flat_shape(self._weights[name].shape)[0], np.bool_)
            self._covered[name] = CoveredRows(rows, {})
        return self._covered[name]

    def add_whole(self, name: str) -> None:
        """Note all rows of a weight, of which nothing more is known."""
        self._covering(name).rows[:] = True
