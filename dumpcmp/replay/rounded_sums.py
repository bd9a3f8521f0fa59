"""Normalisations whose sums are off by what sums round: means and spreads, and all gradients.

Torch's kernels for CPUs add these up in float64, those of compilers and of GPUs in float32. What
a mean is off by, all elements of its group are: of a gradient that cancels over the group, such as
that of a bias before the norm, it leaves more than elements that are rounded each for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.cancelling import groups_of, norm_arguments
from dumpcmp.replay.listed import ReplayFunction

_NORMS = OpSet("batch_norm group_norm instance_norm layer_norm")
_TAKES_MOMENTS = OpTable({"batch_norm": "training", "instance_norm": "use_input_stats"})


def is_made_of_sums(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether it takes moments of what it is given, and not such as are known before."""
    if function.name not in _NORMS:
        return False
    asked = _TAKES_MOMENTS.get(function.name, "")
    return bool(norm_arguments(function, arguments).get(asked, asked != "training"))


@dataclass(frozen=True, slots=True)
class RoundedSums:
    """What sums are off by that are made in a dtype, up or down by `draw`."""

    dtype: torch.dtype
    draw: torch.Generator

    def normalised(self, function: ReplayFunction, arguments: CallArguments) -> Tensor:
        """What a normalisation gives, to be differentiated, with all its sums off."""
        named, name = norm_arguments(function, arguments), function.name
        x = named["input"]
        rows = groups_of(name, x, named)
        centred = rows - self._mean(rows.detach())
        spread = torch.sqrt(self._mean(centred.square()) + float(named.get("eps", 1e-5)))
        shift = centred.mean(1, keepdim=True)  # all but zero: what it gives back is not
        rows = centred / self._repeated(spread, rows) - self._repeated(shift / spread, rows)
        is_by_channel = name == "batch_norm"
        return self._affine(_across(rows, x) if is_by_channel else rows.reshape(x.shape), named)

    def _affine(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        """`x` times the weight of a normalisation, and its bias, whose gradients are sums."""
        of_each = "normalized_shape" in named  # a weight for each element of a group
        lines = x.reshape(-1, math.prod(named["normalized_shape"])) if of_each else x
        rows = lines.transpose(0, 1).reshape(lines.shape[1], -1)
        if (weight := named.get("weight")) is not None:
            rows = rows * self._repeated(weight.reshape(-1, 1), rows)
        if (bias := named.get("bias")) is not None:
            rows = rows + self._repeated(bias.reshape(-1, 1), rows)
        return _across(rows, lines).reshape(x.shape)

    def _mean(self, rows: Tensor) -> Tensor:
        return rows.mean(1, keepdim=True) + self._off(rows.detach())

    def _repeated(self, value: Tensor, rows: Tensor) -> Tensor:
        """`value` for each element of its row, whose gradients the backward pass adds up."""
        each = value.expand_as(rows)
        if each.requires_grad:
            each.register_hook(lambda grad: grad + self._off(grad))  # type: ignore[no-untyped-call]
        return each

    def _off(self, rows: Tensor) -> Tensor:
        """What the means of `rows` may be off by: as when their terms are added one by one.

        Equal terms, as a pool gives back, are all rounded to one side, in one row or in another.
        """
        terms = rows.abs().mean(1)
        tried = (_one_by_one(rows, self.dtype) - rows.sum(1)).abs() / rows.shape[1]
        usual = torch.finfo(self.dtype).eps / 8 * math.sqrt(rows.shape[1])
        share = max(usual, float(torch.where(terms > 0, tried / terms, 0.0).max()))
        signs = torch.randint(0, 2, terms.shape, generator=self.draw) * 2 - 1
        return (share * signs.to(rows.device) * terms).unsqueeze(1)


def _across(rows: Tensor, x: Tensor) -> Tensor:
    """`rows`, one for each place along the second dim of `x`, as they lay there."""
    return rows.reshape(x.transpose(0, 1).shape).transpose(0, 1)


def _one_by_one(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums of `rows` with each partial sum rounded to `dtype`, as torch's own are not."""
    partial = np.add.accumulate(rows.to(dtype).cpu().numpy(), axis=1)
    return torch.from_numpy(partial[:, -1]).to(rows)
