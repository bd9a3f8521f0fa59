"""Holds many small values against their replays at once: a call of torch for all, not for each.

What is done to single elements does not depend on what stands beside them, and torch adds up a row
of a matrix in the order in which it adds up that row alone. So each Replay is the one that `hold`
gives, to the bit; products are summed by a BLAS, which is asked for each value by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import HeldValue, grain_of, hold, readable, rows_of
from dumpcmp.replay.rating import Rerun

MOST = 1 << 12  # elements of a value: beyond them the call is no longer what takes the time
_AT_ONCE = 1 << 14  # elements of all of them: the cache has room for these, and one thread does it
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_TERMS = frozenset((torch.float32, torch.float64))


class ReplayedValue(NamedTuple):
    """A value that was recorded, beside the replay of it."""

    rerun: Rerun
    slot: str
    got: Tensor

    @property
    def like(self) -> tuple[object, ...] | None:
        """What values have in common that can be held together; None where it stands alone."""
        rerun, slot, got = self
        known, dtype = rerun.outputs.get(slot), got.dtype
        if known is None or rerun.is_exact or dtype not in _DTYPES or rerun.unwritten:
            return None
        size = known.numel()
        if not 0 < size <= MOST or known.dtype is not torch.float64 or known.shape != got.shape:
            return None
        if not (known.is_cpu and got.is_cpu and math.isnan(rerun.dropped)) or got.requires_grad:
            return None
        terms = rerun.terms.get(slot)
        if not all(map(_lies_in_order, (known, got) if terms is None else (known, got, terms))):
            return None
        if terms is not None and (terms.dtype not in _TERMS or terms.shape != known.shape):
            return None
        of_terms = None if terms is None else terms.dtype
        return known.shape, dtype, of_terms, rerun.is_pointwise, rerun.is_nearest


def _lies_in_order(tensor: Tensor) -> bool:
    """Whether its rows are gone through one after another, as they are where many lie together."""
    return tensor.is_contiguous() or rows_of(tensor).is_contiguous()


def hold_all(asked: Sequence[ReplayedValue]) -> list[Replay]:
    """What each value differs in from its replay."""
    found: list[Replay | None] = [None] * len(asked)
    for places in _alike([one.like for one in asked]):
        for place, replay in zip(places, _held([asked[at] for at in places]), strict=True):
            found[place] = replay
    return [hold(*one) if told is None else told for one, told in zip(asked, found, strict=True)]


def _alike(likes: Sequence[tuple[object, ...] | None]) -> Iterator[list[int]]:
    """Places of what is alike, so many at a time as are taken at once."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for at, like in enumerate(likes):
        if like is not None:
            groups[like].append(at)
    for like, places in groups.items():
        shape = like[0]
        assert isinstance(shape, torch.Size)
        step = max(1, _AT_ONCE // max(1, shape.numel()))
        yield from (places[start : start + step] for start in range(0, len(places), step))


def _held(some: Sequence[ReplayedValue]) -> Iterator[Replay | None]:
    """The Replays of values that are alike; None of one that is not finite everywhere."""
    first = some[0]
    dtype, shape = first.got.dtype, first.got.shape
    size, width = first.got.numel(), shape[-1] if shape else 1
    known = _stacked([one.rerun.outputs[one.slot] for one in some], size)
    seen = _stacked([one.got for one in some], size)
    wide = seen.to(torch.float64)
    d, off = wide - known, wide - known.to(dtype).to(torch.float64)
    squares, ideal = known * known, d - off
    terms = None
    if first.slot in first.rerun.terms:
        terms = _stacked([one.rerun.terms[one.slot] for one in some], size).to(torch.float64)
    told = _Numbers(
        _dots(d, d), _sums(squares), _dots(squares, squares), _dots(ideal, ideal),
        _dots(off, known), _sums(off), _sums(wide * wide),
        [0.0] * len(some) if terms is None else _sums(terms * terms),
    )  # fmt: skip
    rms = [math.sqrt(squared / size) for squared in told.seen]
    conditions = [one.rerun.condition.get(one.slot, 1.0) for one in some]
    grain, pointwise = grain_of(dtype), first.rerun.is_pointwise
    column = torch.tensor(rms, dtype=torch.float64).unsqueeze(-1)
    norm = torch.linalg.vector_norm
    errors, norms = (norm(each.view(len(some), -1, width), dim=-1) for each in (d, known))
    rows = _largest(errors, norms + column * math.sqrt(width))
    level = known.abs() if pointwise else known.abs() + column
    if terms is not None:
        level = level + terms / torch.tensor(conditions, dtype=torch.float64).unsqueeze(-1)
    elements = _largest((d.abs() - grain).clamp_min(0.0), level)
    beyond = (off.abs() > grain).sum(-1).tolist() if first.rerun.is_nearest else [0] * len(some)
    for at, one in enumerate(some):
        sums = [column[at] for column in told]
        if not math.isfinite(sum(sums)):
            yield None
            continue
        value = HeldValue(one.slot, one.got)
        value.take(one.rerun, sums[:6], sums[7], rows[at], elements[at], beyond[at])
        yield value.replay()


class _Numbers(NamedTuple):
    """Sums of each value: as `HeldValue.take` wants them, of the squares of it and of its terms."""

    errors: list[float]
    known: list[float]
    fourths: list[float]
    ideals: list[float]
    along: list[float]
    shift: list[float]
    seen: list[float]
    terms: list[float]


def _stacked(tensors: list[Tensor], size: int) -> Tensor:
    """One a row, its elements in order: what torch stacks may lie as its values did."""
    return torch.stack(tensors).reshape(len(tensors), size)


def _sums(values: Tensor) -> list[float]:
    found: list[float] = values.sum(-1).tolist()
    return found


def _dots(ones: Tensor, others: Tensor) -> list[float]:
    dot: Callable[[Tensor, Tensor], Tensor] = torch.dot
    found: list[float] = torch.stack(list(map(dot, ones.unbind(), others.unbind()))).tolist()
    return found


def _largest(errors: Tensor, levels: Tensor) -> list[float]:
    """Of each value the largest error in units of its level; infinite where there is no level."""
    ratios = torch.where(errors > 0, errors / levels, 0.0)
    found: list[float] = ratios.amax(-1).tolist()
    return found


# How far the replays are from what golden gave


def distance(again: Tensor, golden: Tensor) -> float:
    """The rel_l2 of a replay against what golden gave out; NaN where there is none."""
    if golden.shape != again.shape or not again.is_floating_point():
        return math.nan
    again = readable(again)
    golden = golden.to(again)
    norm = float(torch.linalg.vector_norm(golden))
    return float(torch.linalg.vector_norm(again - golden)) / norm if norm else math.nan
