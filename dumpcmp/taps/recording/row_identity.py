"""Finds which request and position each row of a step is, from what its model is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.row_ids import MOST_RUNS, ROWS, TARGET, RowId, RowIds
from dumpcmp.taps.recording.step import Step

_IDS = ("decoder_input_ids", "input_ids", "token_ids", "tokens", "idx")
_EMBEDDED = ("inputs_embeds", "hidden_states")
_POSITIONS = ("position_ids", "positions", "cache_position")
_MASKS = ("decoder_attention_mask", "attention_mask")
_BOUNDS = ("query_start_loc", "cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q")
_CACHES = ("past_key_values", "past_key_value", "past", "cache")
_MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class StatedRows:
    """What the program says of its rows: the sequences in a batch, and where they begin."""

    names: tuple[str, ...]
    lengths: tuple[int, ...] | None = None  # rows of each, where they are packed
    starts: tuple[int, ...] | None = None  # the position of the first row of each


_stated: ContextVar[StatedRows | None] = ContextVar("stated_rows", default=None)


@contextmanager
def requests(
    *names: str, lengths: Sequence[int] | None = None, starts: Sequence[int] | None = None
) -> Iterator[None]:
    """Name the sequences in the batch of the calls in the block, as a capture records them.

        with dumpcmp.requests("a", "b"):
            model(input_ids)

    Without it they are numbered in the order in which they begin. `lengths` are the rows of each
    sequence where they are packed into one, and `starts` the positions of the first ones, where
    the arguments of the model do not tell.
    """
    for what, told in (("lengths", lengths), ("starts", starts)):
        if told is not None and len(told) != len(names):
            raise SelectionError(
                f"{len(names)} requests have {len(told)} {what}", hint="give one for each request"
            )
    given = StatedRows(
        names,
        None if lengths is None else tuple(lengths),
        None if starts is None else tuple(starts),
    )
    token = _stated.set(given)
    try:
        yield
    finally:
        _stated.reset(token)


@dataclass(slots=True)
class RowTracker:
    """The sequences of one model that go on from call to call, by their place in the batch."""

    num_begun: int = 0
    ends: dict[int, tuple[str, int]] = field(default_factory=dict)  # place -> name, next position

    def name(self, place: int, first: int) -> str:
        """The sequence at this place of the batch, whose first row now has this position."""
        known = self.ends.get(place)
        if first > 0 and known is not None and known[1] == first:
            return known[0]
        if first > 0:  # the batch has shrunk, or was laid out anew
            for name, end in self.ends.values():
                if end == first:
                    return name
        self.num_begun += 1
        return str(self.num_begun - 1)


@dataclass(frozen=True, slots=True)
class _RowArguments:
    """What a model was given that tells of rows."""

    shape: tuple[int, ...]
    positions: Tensor | None
    mask: Tensor | None
    bounds: Tensor | None
    past: int
    source: str


def put_rows(step: Step, ids: RowIds | None) -> None:
    """Record which rows `step` has."""
    if ids is not None and len(ids.runs) <= MOST_RUNS:
        step.call(ROWS, 0, TARGET, ids.arguments, "")


def rows_of(arguments: Mapping[str, Any], tracker: RowTracker) -> RowIds | None:
    """The rows of a call with these arguments; None where they tell of none."""
    stated, given = _stated.get(), _given(arguments)
    if given is None:
        return None
    sequences = list(_sequences(given, stated))
    num_rows = sum(map(len, sequences))
    if stated is not None and len(stated.names) != len(sequences):
        return None  # it is said of another model than this
    ids: list[RowId | None] = []
    ends: dict[int, tuple[str, int]] = {}
    for place, sequence in enumerate(sequences):
        real = [position for position in sequence if position is not None]
        first = real[0] if real else 0
        if stated is not None:
            name = stated.names[place]
            if stated.starts is not None:
                by = stated.starts[place] - first
                sequence = [None if p is None else p + by for p in sequence]
        else:
            name = tracker.name(place, first)
        ids += [None if position is None else (name, position) for position in sequence]
        if real:
            ends[place] = name, max(p for p in sequence if p is not None) + 1
    tracker.ends = ends
    ids += [None] * (math.prod(given.shape) - num_rows)  # what fills a batch up
    told = ", ".join(filter(None, ("requests" if stated else "", given.source)))
    return RowIds.of(given.shape, ids, told)


def _given(arguments: Mapping[str, Any]) -> _RowArguments | None:
    shape = _token_shape(arguments)
    if shape is None or not 0 < shape.numel() <= _MOST_ROWS:
        return None
    found = {
        kind: next(((name, arguments[name]) for name in names if _is_told(arguments, name)), None)
        for kind, names in (("positions", _POSITIONS), ("mask", _MASKS), ("bounds", _BOUNDS))
    }
    told = {kind: each[1] for kind, each in found.items() if each is not None}
    mask = told.get("mask")
    if mask is not None and (mask.ndim != 2 or len(shape) != 2):
        mask = None
    source = ", ".join(each[0] for each in found.values() if each is not None)
    past = _length_of_past(arguments)
    return _RowArguments(
        tuple(shape), told.get("positions"), mask, told.get("bounds"), past, source
    )


def _is_told(arguments: Mapping[str, Any], name: str) -> bool:
    found = arguments.get(name)
    return isinstance(found, Tensor) and not found.is_meta and found.numel() > 0


def _token_shape(arguments: Mapping[str, Any]) -> torch.Size | None:
    """The dims of tokens: those of token ids, or of embeddings but for the last."""
    for name in _IDS:
        found = arguments.get(name)
        if isinstance(found, Tensor) and found.ndim in (1, 2) and not found.is_floating_point():
            return found.shape
    for name in _EMBEDDED:
        found = arguments.get(name)
        if isinstance(found, Tensor) and found.ndim in (2, 3):
            return found.shape[:-1]
    first = next(iter(arguments.values()), None)
    is_ids = isinstance(first, Tensor) and first.dtype in (torch.int64, torch.int32)
    return first.shape if is_ids and first is not None and first.ndim == 2 else None


def _length_of_past(arguments: Mapping[str, Any]) -> int:
    """How many tokens a cache holds of each sequence: by its own word, or by its first tensor."""
    cache: Any = next((arguments[n] for n in _CACHES if arguments.get(n) is not None), None)
    if cache is not None and hasattr(cache, "get_seq_length"):
        length = cache.get_seq_length()
        return int(length) if isinstance(length, int) else 0
    while isinstance(cache, tuple | list) and cache:
        cache = cache[0]
    return int(cache.shape[-2]) if isinstance(cache, Tensor) and cache.ndim == 4 else 0


def _sequences(given: _RowArguments, stated: StatedRows | None) -> Iterator[list[int | None]]:
    """The positions of each sequence, row by row; None is padding."""
    if (len(given.shape) == 2 and given.shape[0] > 1) or _is_plain(given, stated):
        yield from _of_batch(given)
    else:
        yield from _of_packed(given, stated)


def _is_plain(given: _RowArguments, stated: StatedRows | None) -> bool:
    """Whether a single row of a batch is one sequence, and not several that are packed."""
    if len(given.shape) == 1 or given.bounds is not None:
        return False
    if stated is not None and stated.lengths is not None:
        return False
    positions = _flat(given.positions)
    is_rising = all(b >= a for a, b in pairwise(positions))
    return is_rising or given.mask is not None


def _of_batch(given: _RowArguments) -> Iterator[list[int | None]]:
    batch, length = given.shape
    positions, mask = given.positions, given.mask
    counted = None if mask is None else mask.long().cumsum(1).cpu()[:, -length:] - 1
    real = None if mask is None else mask.cpu()[:, -length:] != 0
    told: Any = None
    if positions is not None:
        while positions.ndim > 2:  # of several axes, such as of pictures, the first counts
            positions = positions[0]
        told = positions.cpu().reshape(-1, length).expand(batch, length).tolist()
    for row in range(batch):
        if counted is not None and counted.shape[1] == length:
            numbers = counted[row].tolist()
        elif told is not None:
            numbers = told[row]
        else:
            numbers = list(range(given.past, given.past + length))
        if real is not None and real.shape[1] == length:
            told_real = zip(numbers, real[row].tolist(), strict=True)
            numbers = [number if is_real else None for number, is_real in told_real]
        yield numbers


def _of_packed(given: _RowArguments, stated: StatedRows | None) -> Iterator[list[int | None]]:
    """Several sequences in one row: cut at bounds that are told, or where positions begin anew."""
    length = given.shape[-1]
    positions = _flat(given.positions) or list(range(given.past, given.past + length))
    if stated is not None and stated.lengths is not None:
        cuts = [sum(stated.lengths[:i]) for i in range(len(stated.lengths) + 1)]
    elif given.bounds is not None:
        cuts = [int(n) for n in given.bounds.cpu().reshape(-1).tolist()]
    else:
        breaks = [i for i in range(1, length) if positions[i] != positions[i - 1] + 1]
        cuts = [0, *breaks, length]
    is_told = given.positions is not None
    for first, end in pairwise(cuts):
        if first < min(end, length) or stated is not None:
            own = positions[first:end] if is_told else range(min(end, length) - first)
            yield list(own)


def _flat(positions: Tensor | None) -> list[int]:
    if positions is None:
        return []
    while positions.ndim > 1:
        positions = positions[0]
    return [int(each) for each in positions.cpu().tolist()]
