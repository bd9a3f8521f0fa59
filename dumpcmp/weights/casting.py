"""When an element of mine is golden's: to the bit, cast, or as near as its quantisation allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dumpcmp.nouns.value import DTYPES
from dumpcmp.weights.matrices import RowBlock

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BETWEEN = (torch.bfloat16, torch.float16, torch.float32)
_AT_BORDERS = 1 + 2**-6  # times half a step: the quotient by the scale is rounded, too


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast of golden to the dtype of mine, perhaps by way of another one."""

    target: torch.dtype
    via: torch.dtype | None = None

    def of(self, golden: Tensor) -> Tensor:
        """Golden as mine should have it."""
        between = golden if self.via is None else golden.to(self.via)
        return between.to(self.target)

    def __str__(self) -> str:
        return "" if self.via is None else f"by way of {_name(self.via)}"


def casts(golden: torch.dtype, target: torch.dtype) -> Iterator[Cast]:
    """The ways in which golden may have become mine, the direct one first."""
    yield Cast(target)
    if golden.is_floating_point and target.is_floating_point:
        yield from (Cast(target, via) for via in _BETWEEN if via not in (golden, target))


def matching(golden: RowBlock, mine: RowBlock, cast: Cast) -> Tensor:
    """Which elements of mine are golden's. One side or both may have been codes with a scale.

    Without scales they must have the bits of the cast. A code must be the nearest to golden: it is
    off by at most half a step. What was computed from codes has two roundings: of the scale and of
    the product.
    """
    if golden.slack is None and mine.slack is None:
        return _bits(cast.of(golden.values)) == _bits(mine.values)
    right, found = golden.values.double(), mine.values.double()
    roundoff = DTYPES[_name(mine.values.dtype)].eps / 2
    slack = (2 * roundoff + roundoff**2) * right.abs()
    if mine.slack is not None:
        slack = slack + mine.slack.double() * _AT_BORDERS
    return ((found - right).abs() <= slack) | (right.isnan() & found.isnan())


def _bits(values: Tensor) -> Tensor:
    if values.dtype in (torch.bool, torch.complex64, torch.complex128):
        return values
    return values.contiguous().view(_BITS[values.element_size()])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
