"""Ops of one kind of device, or of short dtypes alone: what they compute, in plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.nouns.op_names import OpTable
from dumpcmp.replay.fused_layers import encoder_layer, multi_head_attention
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


def rows_of_no_group(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, **_: Any) -> Tensor:
    """The rows of a grouped product that belong to no group: nobody writes to them."""
    if offs is None or (mat_a.ndim, mat_b.ndim) != (2, 3):
        return torch.zeros((), dtype=torch.bool)
    last = int(offs[-1]) if offs.numel() else 0
    return (torch.arange(mat_a.shape[0], device=mat_a.device) >= last)[:, None]


def _grouped_shape(mat_a: Tensor, mat_b: Tensor, offs: Tensor) -> list[int]:
    if mat_a.ndim == mat_b.ndim == 2:
        return [offs.shape[0], mat_a.shape[0], mat_b.shape[1]]
    return [mat_a.shape[-2], mat_b.shape[-1]]


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """A product of short numbers, each factor with a scale for all of it, its rows or blocks."""
    del out_dtype, use_fast_accum
    if scale_result is not None:
        raise Unreplayable("this form of a scaled product is not known")
    product = (mat_a * _spread(scale_a, mat_a)) @ (mat_b * _spread(scale_b, mat_b))
    return product if bias is None else product + bias


def _spread(scale: Tensor, over: Tensor) -> Tensor:
    """A scale for each element, of one for each block."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim != over.ndim:
        raise Unreplayable("the scales lie in an order that is not known")
    for dim, size in enumerate(over.shape):
        if scale.shape[dim] not in (1, size):
            each = -(-size // scale.shape[dim])
            scale = scale.repeat_interleave(each, dim).narrow(dim, 0, size)
    return scale


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


class AttentionBackward(NamedTuple):
    """What the backward pass of attention is given, whatever kernel takes it."""

    grad: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None  # a mask that is added
    dropout_p: float
    is_causal: bool
    scale: float | None

    def slopes(self) -> tuple[Tensor, ...]:
        """The gradients of query, key and value, and of a mask that is added."""
        if self.dropout_p:
            raise Unreplayable("it draws random numbers")
        given = [self.query, self.key, self.value, *([] if self.bias is None else [self.bias])]
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in given]
            q, k, v, mask = (*leaves, None)[:4]
            assert q is not None and k is not None and v is not None
            out = F.scaled_dot_product_attention(
                q, k, v, mask, 0.0, self.is_causal, scale=self.scale, enable_gqa=self._share > 1
            )
            return torch.autograd.grad(out, leaves, self.grad)

    def terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of absolute values that the gradients of query, key and value are left of.

        A score is as much off as its product rounds, and so is the share that it has, relatively.
        """
        query, keys, values = self.query, self._of_heads(self.key), self._of_heads(self.value)
        factor = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = query @ keys.mT * factor + (0.0 if self.bias is None else self.bias)
        if self.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
        is_idle = torch.isneginf(scores).all(-1, keepdim=True)  # nothing is seen from there
        shares = torch.where(is_idle, 0.0, scores.softmax(-1))
        shares = shares * (1 + abs(factor) * query.abs() @ keys.mT.abs())
        slopes = self.grad.abs() @ values.mT.abs()
        moved = shares * (slopes + (shares * slopes).sum(-1, keepdim=True)) * abs(factor)
        in_heads = moved.mT @ query.abs(), shares.mT @ self.grad.abs()
        return moved @ keys.abs(), *map(self._in_groups, in_heads)

    @property
    def _share(self) -> int:
        """How many heads of the query have one of the key in common."""
        return self.query.shape[-3] // self.key.shape[-3] if self.query.ndim > 2 else 1

    def _of_heads(self, shared: Tensor) -> Tensor:
        return shared.repeat_interleave(self._share, -3) if self._share > 1 else shared

    def _in_groups(self, terms: Tensor) -> Tensor:
        *batch, heads, rows, width = terms.shape
        in_groups = (*batch, heads // self._share, self._share, rows, width)
        return terms.reshape(in_groups).sum(-3) if self._share > 1 else terms


def _on_cpu(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Any, logsumexp: Any,
    dropout_p: float, is_causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> AttentionBackward:  # fmt: skip
    del out, logsumexp
    return AttentionBackward(grad, query, key, value, attn_mask, dropout_p, is_causal, scale)


def _flash(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Any, logsumexp: Any,
    starts_q: Any, starts_k: Any, max_q: Any, max_k: Any, dropout_p: float, is_causal: bool,
    *drawn: Any, scale: float | None = None,
) -> AttentionBackward:  # fmt: skip
    del out, logsumexp, starts_q, starts_k, max_q, max_k, drawn
    return AttentionBackward(grad, query, key, value, None, dropout_p, is_causal, scale)


def _efficient(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Any,
    logsumexp: Any, seed: Any, offset: Any, dropout_p: float, wanted: Any,
    is_causal: bool = False, *, scale: float | None = None,
) -> AttentionBackward:  # fmt: skip
    del out, logsumexp, seed, offset, wanted
    return AttentionBackward(grad, query, key, value, attn_bias, dropout_p, is_causal, scale)


def _by_cudnn(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Any, logsumexp: Any,
    seed: Any, offset: Any, attn_bias: Tensor | None, starts_q: Any, starts_k: Any, max_q: Any,
    max_k: Any, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> AttentionBackward:  # fmt: skip
    del out, logsumexp, seed, offset, starts_q, starts_k, max_q, max_k
    return AttentionBackward(grad, query, key, value, attn_bias, dropout_p, is_causal, scale)


# How each of them is called, and how many gradients it gives out.
ATTENTION_BACKWARD: OpTable[tuple[Callable[..., AttentionBackward], int]] = OpTable(
    {
        "_scaled_dot_product_flash_attention_for_cpu_backward": (_on_cpu, 3),
        "_scaled_dot_product_flash_attention_backward": (_flash, 3),
        "_scaled_dot_product_efficient_attention_backward": (_efficient, 4),
        "_scaled_dot_product_cudnn_attention_backward": (_by_cudnn, 3),
    }
)


def _attention_slopes(name: str, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    called, count = ATTENTION_BACKWARD[name]
    return called(*args, **kwargs).slopes()[:count]


def attention_terms(name: str, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The terms of what the backward pass of attention gives out, by slot."""
    found = ATTENTION_BACKWARD[name][0](*args, **kwargs).terms()
    return {f"output.{number}": each for number, each in enumerate(found)}


def cudnn_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A batch norm, which follows its moments; what it reserves for its backward is nobody's."""
    found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm(
        x, weight, bias, mean, var, training, momentum, eps
    )
    return found


def cudnn_batch_norm_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mean: Tensor | None, var: Tensor | None,
    saved_mean: Tensor, saved_spread: Tensor, eps: float, *reserved: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of a batch norm in training."""
    del reserved
    found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, mean, var, saved_mean, saved_spread, True, eps, [True] * 3
    )
    return found


def cudnn_convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool
) -> Tensor:
    """A convolution without bias."""
    del flags
    outward = [0] * len(padding)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, outward, groups)


def nextafter(x: Tensor, other: Tensor) -> Tensor:
    """The next number that the dtype of `x` has: of a longer one it would be another."""
    return torch.nextafter(x, other.to(x.dtype))


def fma(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """A product and a sum, rounded once: Inductor's."""
    return x * factor + summand


STAND_INS: OpTable[Callable[..., Any]] = OpTable(
    {
        "_grouped_mm": grouped_mm,
        "grouped_mm": grouped_mm,
        "_scaled_mm": scaled_mm,
        "_scaled_dot_product_flash_attention": flash_attention,
        "_scaled_dot_product_efficient_attention": masked_attention,
        "_scaled_dot_product_cudnn_attention": masked_attention,
        "cudnn_convolution": cudnn_convolution,
        "cudnn_batch_norm": cudnn_batch_norm,
        "cudnn_batch_norm_backward": cudnn_batch_norm_backward,
        "_native_multi_head_attention": multi_head_attention,
        "_transformer_encoder_layer_fwd": encoder_layer,
        "fma": fma,
        "nextafter": nextafter,
        **{name: partial(_attention_slopes, name) for name in ATTENTION_BACKWARD},
    }
)

# Where a device computes something else than the CPU does, by the type of the device.
STAND_INS_ON: dict[str, OpTable[Callable[..., Any]]] = {
    "cuda": OpTable({"_transformer_encoder_layer_fwd": partial(encoder_layer, approximate="tanh")})
}


def stand_in(name: str, ran_on: str) -> Callable[..., Any] | None:
    """What computes the same as the function `name` that ran on a device of this type, if any."""
    return STAND_INS_ON.get(ran_on, OpTable({})).get(name) or STAND_INS.get(name)


# Of ops that leave elements of their result unwritten: which, by their arguments.
UNWRITTEN: OpTable[Callable[..., Tensor]] = OpTable(
    {"_grouped_mm": rows_of_no_group, "grouped_mm": rows_of_no_group}
)
