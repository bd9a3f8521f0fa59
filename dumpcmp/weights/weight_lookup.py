"""Finds weights by their values, where names say nothing: renamed, tied, exchanged, merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from dumpcmp.weights.casting import Cast
from dumpcmp.weights.checkpoint_files import Weight
from dumpcmp.weights.matrices import Matrix, flat_shape, matrices
from dumpcmp.weights.row_hashes import hash_rows
from dumpcmp.weights.weight_names import FUSED, Composition, WeightPart

_PROBED = 64  # rows of which a weight's fingerprint is taken

TwoDims = tuple[int, int]
Hashes = NDArray[np.uint64]


class WeightLookup:
    """Golden's weights by fingerprints of a few elements; what it finds must still be measured."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._by_shape: dict[TwoDims, list[Weight]] = defaultdict(list)
        for weight in weights.values():
            if not weight.problem:
                self._by_shape[flat_shape(weight.shape)].append(weight)
        self._whole: dict[tuple[TwoDims, torch.dtype], dict[int, list[str]]] = {}
        self._rows: dict[tuple[int, torch.dtype], tuple[Hashes, NDArray[np.int64], list[str]]] = {}

    def same_as(self, mine: Matrix) -> list[str]:
        """The weights of golden that have its shape and the same few elements."""
        shape, dtype = (mine.rows, mine.columns), mine.torch_dtype
        if (shape, dtype) not in self._whole:
            known: dict[int, list[str]] = defaultdict(list)
            for weight in self._by_shape[shape]:
                known[_fingerprint(matrices(weight, None)[0], dtype)].append(weight.name)
            self._whole[shape, dtype] = known
        is_constant = bool((mine.sample().values == mine.sample().values.reshape(-1)[:1]).all())
        return [] if is_constant else self._whole[shape, dtype].get(_fingerprint(mine, dtype), [])

    def composition_of(self, mine: Matrix) -> Composition | None:
        """The weights of which mine has all rows, one after the other; None where it has not."""
        hashes, owners, names = self._row_index(mine.columns, mine.torch_dtype)
        if not hashes.size or mine.columns < 2:
            return None
        wanted = hash_rows(mine.sample().values)
        at = np.minimum(np.searchsorted(hashes, wanted), hashes.size - 1)
        is_known = hashes[at] == wanted
        if is_known.mean() < 0.5:
            return None
        _, first = np.unique(owners[at[is_known]], return_index=True)
        found = [names[owners[at[is_known]][i]] for i in np.sort(first)]
        sizes = {w.name: flat_shape(w.shape)[0] for ws in self._by_shape.values() for w in ws}
        if sum(sizes[name] for name in found) != mine.rows:
            return None
        return (tuple(WeightPart(name) for name in _in_known_order(found)),)

    def _row_index(
        self, columns: int, dtype: torch.dtype
    ) -> tuple[Hashes, NDArray[np.int64], list[str]]:
        if (columns, dtype) not in self._rows:
            found = list(self._sampled(columns, dtype))
            names = [name for name, _ in found]
            sizes = [each.size for _, each in found]
            hashes = np.concatenate([each for _, each in found] or [np.empty(0, np.uint64)])
            order = np.argsort(hashes, kind="stable")
            owners = np.repeat(np.arange(len(names)), sizes)
            self._rows[columns, dtype] = hashes[order], owners[order], names
        return self._rows[columns, dtype]

    def _sampled(self, columns: int, dtype: torch.dtype) -> Iterator[tuple[str, Hashes]]:
        for (_, width), weights in self._by_shape.items():
            for weight in weights if width == columns else ():
                sample = matrices(weight, None)[0].sample().values
                yield weight.name, hash_rows(Cast(dtype).of(sample))


def _fingerprint(matrix: Matrix, dtype: torch.dtype) -> int:
    rows = np.unique(np.linspace(0, max(0, matrix.rows - 1), min(matrix.rows, _PROBED)).astype(int))
    columns = np.unique(np.linspace(0, max(0, matrix.columns - 1), 16).astype(int))
    values = Cast(dtype).of(matrix.block(rows, columns).values)
    return int(hash_rows(values.reshape(1, -1))[0])


def _in_known_order(names: list[str]) -> list[str]:
    """Projections in the order in which they are merged everywhere; others as they come."""
    for alternatives in FUSED.values():
        for parts in alternatives:
            by_part = {part: name for part in parts for name in names if part in name.split(".")}
            if len(by_part) == len(parts) == len(names):
                return [by_part[part] for part in parts]
    return names
