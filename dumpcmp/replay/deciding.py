"""Decisions on single numbers: comparisons, roundings to integers, places among boundaries.

The target's decision is right where torch decides so on what the target was given, in its dtype
or in float64: a compiled kernel compares wider numbers than it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.nouns.replay import Choice, Flip
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.replay.selecting import apart, least_explained, place

Number = Tensor | float | int | bool

COMPARISONS: OpTable[Callable[[Any, Any], Tensor]] = OpTable(
    {
        "eq": torch.eq,
        "ne": torch.ne,
        "lt": torch.lt,
        "le": torch.le,
        "gt": torch.gt,
        "ge": torch.ge,
    }
)
ROUNDINGS = OpSet("floor ceil round trunc sign")
CASTS = OpSet("to type long int short char byte _to_copy")


def compared_numbers(function: str, sides: Sequence[Number], got: Tensor) -> str:
    """Why `got` is no right comparison of both `sides`; empty where it is."""
    compare = COMPARISONS[function]
    wide = compare(*(s.double() if isinstance(s, Tensor) else s for s in sides))
    return _unlike(got, _first(compare, *sides), wide)


def rounded_numbers(function: str, given: Tensor, got: Tensor) -> str:
    """Why `got` is no right rounding of `given` to whole numbers."""
    if function in ROUNDINGS:
        return _unlike(got, getattr(torch, function)(given))
    return _unlike(got, given.to(got.dtype))


def _first(compare: Callable[..., Tensor], one: Number, other: Number) -> Tensor:
    """The comparison as torch makes it; a number that stands first is a tensor of its own."""
    return compare(one if isinstance(one, Tensor) else torch.tensor(one), other)


def _unlike(got: Tensor, *admitted: Tensor) -> str:
    if got.shape != admitted[0].shape:
        return f"gives out shape {list(got.shape)} and not {list(admitted[0].shape)}"
    bad = torch.ones_like(got, dtype=torch.bool)
    for right in admitted:
        bad &= (got != right) & ~(got.isnan() & right.isnan())
    if not bad.any():
        return ""
    where = [int(i) for i in bad.nonzero()[0]]
    elements, are = counted(bad.numel(), "element"), plural(int(bad.sum()), "is", "are")
    return f"{int(bad.sum())} of {elements} {are} not so, the first at {where}"


def crossed(
    golden: Sequence[Number], target: Sequence[Number], ours: Tensor, theirs: Tensor
) -> Choice:
    """The elements of a comparison in which the sides differ, with golden's margins there.

    The margin is how far apart the two numbers are that golden compared; the noise is how far the
    sides are apart in either of them.
    """
    if ours.shape != theirs.shape:
        return Choice(num_rows=theirs.numel())
    try:
        first, second = (_spread(side, ours.shape) for side in golden)
        noise = torch.maximum(
            *(
                apart(_spread(a, ours.shape), _spread(b, ours.shape))
                for a, b in zip(golden, target, strict=True)
            )
        )
    except RuntimeError:  # what was compared had other shapes on the two sides
        return Choice(num_rows=theirs.numel())
    return flipped(ours, theirs, apart(first, second), noise)


def crossed_whole(
    function: str, golden: Tensor, target: Tensor, ours: Tensor, theirs: Tensor
) -> Choice:
    """The same of roundings to whole numbers: the margin is that to where the target's begin."""
    if not ours.shape == theirs.shape == golden.shape == target.shape:
        return Choice(num_rows=theirs.numel())
    exact = golden.double()
    least, most = _rounded_from(function, theirs.double())
    margins = torch.maximum(least - exact, exact - most).clamp(min=0.0)
    return flipped(ours, theirs, margins, apart(exact, target.double()))


def _rounded_from(function: str, whole: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number that are rounded to `whole`."""
    match function:
        case "floor":
            return whole, whole + 1
        case "ceil":
            return whole - 1, whole
        case "round":
            return whole - 0.5, whole + 0.5
        case "sign":
            least = torch.where(whole < 0, -torch.inf, 0.0)
            return least, torch.where(whole > 0, torch.inf, 0.0)
        case _:
            return torch.where(whole > 0, whole, whole - 1), torch.where(
                whole < 0, whole, whole + 1
            )


def _spread(number: Number, shape: torch.Size) -> Tensor:
    exact = torch.as_tensor(number).double()
    return exact.broadcast_to(shape)


def flipped(ours: Tensor, theirs: Tensor, margins: Tensor, noises: Tensor) -> Choice:
    """The elements in which `ours` and `theirs` differ, as a Choice."""
    differs = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    rows = differs.reshape(-1).nonzero()[:, 0]
    golden, target = ours.reshape(-1)[rows], theirs.reshape(-1)[rows]
    margin, noise = margins.reshape(-1)[rows], noises.reshape(-1)[rows]
    shape = tuple(theirs.shape)
    flips = (
        Flip(
            place(int(rows[i]), shape),
            (_whole(golden[i]),),
            (_whole(target[i]),),
            float(margin[i]),
            float(noise[i]),
        )
        for i in least_explained(margin, noise)
    )
    return Choice("", theirs.numel(), rows.numel(), tuple(flips))


def _whole(number: Tensor) -> int:
    return int(number) if bool(number.isfinite()) else 0


def bounded(asked: Mapping[str, Any], boundaries: Tensor, numbers: Tensor, got: Tensor) -> str:
    """Why `got` are not the places of `numbers` among `boundaries`."""
    right = asked.get("side") == "right" or bool(asked.get("right", False))
    sorter = asked.get("sorter")
    ordered = boundaries if sorter is None else boundaries.gather(-1, sorter)
    return _unlike(got.long(), torch.searchsorted(ordered.contiguous(), numbers, right=right))


def crossed_boundaries(
    golden: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], ours: Tensor, theirs: Tensor
) -> Choice:
    """The numbers that stand elsewhere among boundaries, with golden's margins to those crossed.

    Each side is its boundaries and its numbers.
    """
    (bounds, numbers), (other_bounds, others) = golden, target
    same = bounds.shape == other_bounds.shape and numbers.shape == others.shape
    if not same or ours.shape != theirs.shape:
        return Choice(num_rows=theirs.numel())
    last = bounds.shape[-1] - 1
    # the farthest boundary between the two places: all between them were crossed
    near = torch.where(theirs > ours, theirs - 1, theirs).clamp(0, max(last, 0)).long()
    if bounds.ndim == 1:
        edge, beside = bounds[near], other_bounds[near]
    else:
        edge, beside = bounds.gather(-1, near), other_bounds.gather(-1, near)
    margins = apart(edge.double(), numbers.double())
    noises = torch.maximum(
        apart(numbers.double(), others.double()), apart(edge.double(), beside.double())
    )
    return flipped(ours, theirs, margins, noises)
