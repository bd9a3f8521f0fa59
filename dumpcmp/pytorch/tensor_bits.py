"""Whether two tensors are the same, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes; NaN are equal to themselves."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if not one.numel():
        return True
    return bool(torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
