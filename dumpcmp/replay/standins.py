"""Ops of one kind of device, or of short dtypes alone: what they compute, in plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.unreplayable import Unreplayable


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Tensor:
    """Matrix products of groups, whose rows, columns or terms lie one after the other."""
    del out_dtype
    if mat_a.ndim == 3 and mat_b.ndim == 3:
        return torch.bmm(mat_a, mat_b)
    if offs is None or bias is not None:
        raise Unreplayable("this form of a grouped product is not known")
    if mat_a.is_meta:
        return mat_a.new_empty(_grouped_shape(mat_a, mat_b, offs))
    bounds = [0, *offs.tolist()]
    spans = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    if mat_b.ndim == 3:
        whole = mat_a.new_zeros(_grouped_shape(mat_a, mat_b, offs))
        for number, span in enumerate(spans):
            whole[span] = mat_a[span] @ mat_b[number]
        return whole
    if mat_a.ndim == 3:
        return torch.cat([a @ mat_b[:, span] for a, span in zip(mat_a, spans, strict=True)], 1)
    return torch.stack([mat_a[:, span] @ mat_b[span] for span in spans])


def _grouped_shape(mat_a: Tensor, mat_b: Tensor, offs: Tensor) -> list[int]:
    if mat_a.ndim == mat_b.ndim == 2:
        return [offs.shape[0], mat_a.shape[0], mat_b.shape[1]]
    return [mat_a.shape[-2], mat_b.shape[-1]]


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """Attention without a mask; of what else it gives out, nothing is known."""
    del return_debug_mask
    return masked_attention(query, key, value, None, False, dropout_p, is_causal, scale=scale)


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None = None,
    compute_log_sumexp: bool = False, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """Attention with a mask that is added; of what else it gives out, nothing is known."""
    del compute_log_sumexp, return_debug_mask
    if dropout_p:
        raise Unreplayable("it draws random numbers")
    attention = F.scaled_dot_product_attention
    return (attention(query, key, value, attn_bias, 0.0, is_causal, scale=scale),)


def cudnn_convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool
) -> Tensor:
    """A convolution without bias."""
    del flags
    outward = [0] * len(padding)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, outward, groups)


STAND_INS: dict[str, Callable[..., Any]] = {
    "_grouped_mm": grouped_mm,
    "grouped_mm": grouped_mm,
    "_scaled_dot_product_flash_attention": flash_attention,
    "_scaled_dot_product_efficient_attention": masked_attention,
    "_scaled_dot_product_cudnn_attention": masked_attention,
    "cudnn_convolution": cudnn_convolution,
}
