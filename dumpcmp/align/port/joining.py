"""Finds modules whose weights are pieces of another module's: q, k and v in one, gate and up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dumpcmp.align.port.faces import Face
from dumpcmp.align.port.features import FeatureRows, Located, locate
from dumpcmp.align.port.samples import Samples
from dumpcmp.nouns.key import Key, Op


@dataclass(frozen=True, slots=True)
class Joint:
    """A module that has in one what others have in several, and how they lie in it."""

    whole: Face
    pieces: tuple[Face, ...]  # in their order
    of_golden: bool  # the pieces are golden's
    groups: int  # in which they take turns
    rel_l2: float  # the largest
    seen_in: str  # "weight", "weight.T", or "output" where the weights do not tell
    keys: tuple[Key, tuple[Key, ...]]  # the values that were held against each other


@dataclass(frozen=True, slots=True)
class _Part:
    face: Face
    key: Key
    located: Located


@dataclass(frozen=True)
class _View:
    """How the features of a module become rows: of its weight, its columns, or its output."""

    samples: Samples
    seen_in: str  # "weight", "weight.T" or "output"

    def key(self, face: Face) -> Key | None:
        """The value by which a module is looked for: its largest weight, or what it gives out."""
        keys = face.outputs[:1] if self.seen_in == "output" else face.weights
        record = self.samples.listing.record
        return max(keys, key=lambda key: math.prod(record(key).shape), default=None)

    def rows(self, key: Key | None) -> FeatureRows | None:
        """A value as rows of features."""
        numbers = self.samples.numbers(key) if key is not None else None
        if numbers is None or numbers.ndim < 2:
            return None
        if self.seen_in == "weight":
            return FeatureRows.of(numbers.reshape(len(numbers), -1))
        return FeatureRows.of(np.ascontiguousarray(numbers.reshape(-1, numbers.shape[-1]).T))


_VIEWS = [("weight", "weight"), ("weight", "weight.T"), ("weight.T", "weight"),
          ("weight.T", "weight.T"), ("output", "output")]  # fmt: skip


def joints(
    pieces: Sequence[Face], ours: Samples, wholes: Sequence[Face], theirs: Samples, *,
    of_golden: bool,
) -> Iterator[Joint]:  # fmt: skip
    """The `wholes` that are made up of `pieces`, by their weights, or else by what they give."""
    parts_taken: set[Op] = set()
    wholes_taken: set[Op] = set()
    for small, large in _VIEWS:
        view, room = _View(ours, small), _View(theirs, large)
        firsts = [first for face in pieces if (first := _first(face, view))]
        for whole in (face for face in wholes if face.is_one_matrix(theirs.listing)):
            free = [first for first in firsts if first.face.op not in parts_taken]
            if len(free) < 2 or whole.op in wholes_taken:
                continue
            key = room.key(whole)
            rows = room.rows(key)
            chosen = _making_up(list(_parts(free, view, rows)), rows) if rows else None
            if chosen and key is not None:
                wholes_taken.add(whole.op)
                parts_taken |= {part.face.op for part in chosen}
                yield _joint(whole, key, chosen, large, of_golden)


def _joint(whole: Face, key: Key, parts: Sequence[_Part], seen_in: str, of_golden: bool) -> Joint:
    return Joint(
        whole,
        tuple(part.face for part in parts),
        of_golden,
        parts[0].located.groups,
        max(part.located.rel_l2 for part in parts),
        seen_in,
        (key, tuple(part.key for part in parts)),
    )


@dataclass(frozen=True, slots=True)
class _First:
    """The first row of a piece, by which it is looked for."""

    face: Face
    key: Key
    rows: FeatureRows


def _first(face: Face, view: _View) -> _First | None:
    key = view.key(face)
    rows = view.rows(key)
    return _First(face, key, rows.head()) if key is not None and rows is not None else None


def _parts(firsts: Iterable[_First], view: _View, whole: FeatureRows) -> Iterator[_Part]:
    """The modules whose rows are rows of `whole`, and where."""
    for first in firsts:
        if whole.has(first.rows):
            rows = view.rows(first.key)
            located = locate(rows, whole) if rows is not None else None
            if located is not None:
                yield _Part(first.face, first.key, located)


def _making_up(parts: Sequence[_Part], whole: FeatureRows) -> list[_Part] | None:
    """Those of `parts` that follow each other without a gap and make up the whole."""
    groups = max((part.located.groups for part in parts), default=1)
    chosen: list[_Part] = []
    end = 0
    for part in sorted(parts, key=lambda part: (part.located.start, part.face.place)):
        if part.located.start == end and part.located.groups == groups:
            chosen.append(part)
            end += part.located.run
    return chosen if len(chosen) > 1 and end * groups == len(whole.matrix) else None
