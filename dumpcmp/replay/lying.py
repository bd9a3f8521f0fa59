"""Lays what a call was given in memory as the run had it, where its kernels round by that."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dumpcmp.nouns.record import Call

# Moments of channels that lie last are summed one by one: in float32 on a CPU an output is 4e-8
# off float64 where channels lie first, and 3e-6 where they lie last, at 100,000 elements each.
_BY_LAYOUT = "batch_norm"


def rounds_by_layout(call: Call) -> bool:
    """Whether the function has kernels for other layouts, which round otherwise."""
    return _BY_LAYOUT in call.target


def laid_as(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """`tensor` with its dims in the order in memory that `stride` tells, without gaps."""
    if len(stride) != tensor.ndim:
        return tensor
    order = sorted(range(tensor.ndim), key=lambda dim: -stride[dim])
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
