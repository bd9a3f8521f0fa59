"""What a product is off by whose factors were rounded to levels that nobody can see."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dumpcmp.nouns.levels import Levels
from dumpcmp.replay.rating import norm_of

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ProductError:
    """How far a product is off."""

    whole: float  # its rel_l2
    gain: float  # by how much it is larger, without what is added to it, in shares of the whole
    columns: float  # by how much its columns are larger or smaller, root mean square


def rounded_product(
    run: Callable[[Mapping[P, Tensor]], Tensor],
    given: Mapping[P, Tensor],
    levels: Mapping[P, Levels],
    known: Tensor,
) -> ProductError:
    """What `known`, which `run` makes of `given`, is off by once those are rounded to `levels`.

    Each number may be off by anything up to half a step, of a scale for the whole of its factor.
    """
    draw = torch.Generator().manual_seed(0)
    moved = {place: _moved(given[place], levels[place], draw) for place in levels}
    return error_of_product(run({**given, **moved}), known, known)


def error_of_product(got: Tensor, known: Tensor, product: Tensor) -> ProductError:
    """How far `got` is off `known`, of which `product` is what factors made.

    The rest was added to it, as a bias is, and no scale of a factor makes that larger.
    """
    level, made = known.to(torch.float64), product.to(torch.float64)
    off, size = got.to(torch.float64) - level, norm_of(level)
    if not size or not math.isfinite(norm_of(off)):
        return ProductError(0.0, 0.0, 0.0)
    along, alone = float((off * made).sum()), norm_of(made)
    gain = along / (alone * size) if alone else 0.0
    return ProductError(norm_of(off) / size, gain, _scaling(_columns(off), _columns(level)))


def _columns(product: Tensor) -> Tensor:
    """A column for each output; of a convolution those are channels."""
    dim = 1 if product.ndim > 3 else -1
    return product.movedim(dim, -1).reshape(-1, product.shape[dim])


def _scaling(off: Tensor, known: Tensor) -> float:
    """The root mean square of the columns' gains, each weighed by its size."""
    squares = (known * known).sum(0)
    along = (off * known).sum(0)
    told = squares > 0
    gains = along[told] / squares[told]
    return math.sqrt(float((gains * gains * squares[told]).sum() / squares.sum()))


def _moved(value: Tensor, levels: Levels, draw: torch.Generator) -> Tensor:
    wide = value.to(torch.float64)
    sizes = wide.abs()
    most = levels.half * sizes.max() + levels.share * sizes
    shares = 2 * torch.rand(value.shape, generator=draw, dtype=torch.float64) - 1
    return (wide + shares.to(value.device) * most).to(value.dtype)
