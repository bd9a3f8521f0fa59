"""Layers that torch runs as one fused op in inference: what they compute, in plain torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_HEADS = 1  # the dim of heads in scores


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`torch._native_multi_head_attention`: what a mask says is left out, however large it is."""
    given = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    heads = (
        F.linear(x, weight, bias).reshape(*x.shape[:-1], num_head, -1) for x, weight, bias in given
    )
    q, k, v = (each.transpose(1, 2) for each in heads)
    shares = _masked_softmax(q @ k.mT / math.sqrt(embed_dim / num_head), mask, mask_type)
    mixed = F.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return (mixed,)
    return mixed, shares.mean(_HEADS) if average_attn_weights else shares


def _masked_softmax(scores: Tensor, mask: Tensor | None, mask_type: int | None) -> Tensor:
    if mask is None:
        return scores.softmax(-1)
    left_out = mask.bool()
    if mask_type == 1:  # of keys, in each example
        left_out = left_out[:, None, None, :]
    return scores.masked_fill(left_out, -torch.inf).softmax(-1)


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None, *, approximate: str = "none",
) -> Tensor:  # fmt: skip
    """`torch._transformer_encoder_layer_fwd`; `approximate` says how the device computes a gelu."""

    def attend(x: Tensor) -> Tensor:
        weights = qkv_weight, qkv_bias, proj_weight, proj_bias
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type
        )[0]

    def feed(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        inner = F.gelu(inner, approximate=approximate) if use_gelu else F.relu(inner)
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))
