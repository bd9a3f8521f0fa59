"""What an op gives that took values before they were rounded: inside of a fused kernel.

A kernel holds what it computes in float32, and uses it as it is. What the archive has of it is
rounded to the dtype of the program, or was computed once more by a twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dumpcmp.judge.tolerances import UNROUNDED, UNROUNDED_SUMS
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import Rerun

DRAWS = 8  # of signs: a sum of many terms varies from one to the next
P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Leeway:
    """How far what an op gives may be off because of what it was given."""

    elements: Tensor  # of each element
    whole: float  # of its gain, and of its mean over the rms

    def __add__(self, other: Leeway) -> Leeway:
        return Leeway(self.elements + other.elements, self.whole + other.whole)

    def explains(self, got: Tensor, known: Tensor, times: float) -> Tensor:
        """`got`, as near to `known` as it may be by so many times its leeway."""
        wide, level = got.to(torch.float64), known.to(torch.float64)
        off = wide - level
        left = off.sign() * (off.abs() - times * self.elements).clamp_min(0.0)
        near = torch.where(torch.isfinite(off), level + left, wide).to(got.dtype)
        return torch.where(left == 0, level.to(got.dtype), near)

    def held(self, again: Rerun, slot: str, got: Tensor, before: Replay) -> Replay:
        """`got` held against `again` once more, by what its inputs do not explain.

        Inputs that are rounded up here and down there do not make the whole larger or shift it:
        that is judged as it was `before`.
        """
        single = again.is_pointwise or again.is_exact  # then an element is made of one of each
        times = UNROUNDED if single else UNROUNDED_SUMS
        replay = hold(again, slot, self.explains(got, again.outputs[slot], times))
        biased = replay._replace(gain=before.gain, offset=before.offset)
        return biased._replace(scatter=before.introduced, leeway=self.whole)


def leeway(
    run: Callable[[Mapping[P, Tensor]], Tensor],
    given: Mapping[P, Tensor],
    units: Mapping[P, float],
    known: Tensor,
) -> Leeway:
    """How far `known`, which `run` makes of `given`, may be off where inputs are by their unit.

    Each of these by itself is moved up and down, element by element.
    """
    room, draw = no_leeway(known), torch.Generator().manual_seed(0)
    for place, unit in units.items():
        value = given[place]
        if unit and value.is_floating_point():
            moved = (_moved(value, unit, draw) for _ in range(DRAWS))
            room += leeway_of((run({**given, place: one}) for one in moved), known)
    return room


def no_leeway(known: Tensor) -> Leeway:
    """That of what is `known` to be so and no other."""
    return Leeway(torch.zeros(known.shape, dtype=torch.float64, device=known.device), 0.0)


def leeway_of(draws: Iterable[Tensor], known: Tensor) -> Leeway:
    """How far `known` may be off that is one of `draws` where something is moved by chance."""
    apart = [_apart(one, known) for one in draws]
    whole = max(_bias(one, known) for one in apart)
    return Leeway(torch.stack([one.abs() for one in apart]).amax(0), UNROUNDED_SUMS * whole)


def _moved(value: Tensor, unit: float, draw: torch.Generator) -> Tensor:
    """`value` up or down by a share, and by what numbers that are too small for one are off."""
    signs = torch.randint(0, 2, value.shape, generator=draw).to(value.device) * 2 - 1
    limits, wide = torch.finfo(value.dtype), value.to(torch.float64)
    return wide + signs * (unit * wide.abs() + limits.tiny * limits.eps)


def _apart(moved: Tensor, known: Tensor) -> Tensor:
    apart = moved.to(torch.float64) - known.to(torch.float64)
    return torch.where(torch.isfinite(apart), apart, 0.0)


def _bias(apart: Tensor, known: Tensor) -> float:
    """The share by which the whole grows, or the mean is shifted in terms of the rms."""
    level = torch.where(torch.isfinite(known), known, 0.0).to(torch.float64)
    squares = float((level * level).sum())
    if not squares:
        return 0.0
    gain = float((apart * level).sum().abs()) / squares
    return max(gain, float(apart.mean().abs()) / math.sqrt(squares / level.numel()))
