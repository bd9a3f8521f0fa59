"""Attention, as ONNX defines it and as ONNX Runtime fuses it; rotary embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define
from dumpcmp.replay.unreplayable import Unreplayable

_COMPOSES = FunctionKind.COMPOSES


def _heads(x: Tensor, count: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, causal: bool,
    softcap: float = 0.0, past: int = 0,
) -> Tensor:  # fmt: skip
    share = q.shape[1] // k.shape[1]
    if share > 1:
        k, v = (each.repeat_interleave(share, 1) for each in (k, v))
    scores = q @ k.mT * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    if causal:
        rows, columns = scores.shape[-2:]
        at = torch.arange(rows, device=q.device)[:, None] + past
        scores = scores.masked_fill(torch.arange(columns, device=q.device) > at, -math.inf)
    is_idle = torch.isneginf(scores).all(-1, keepdim=True)
    return torch.where(is_idle, 0.0, scores.softmax(-1)) @ v


@define("Attention", _COMPOSES)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None, lengths: Tensor | None = None, is_causal: int = 0,
    kv_num_heads: int = 0, q_num_heads: int = 0, qk_matmul_output_mode: int = 0,
    scale: float | None = None, softcap: float = 0.0, softmax_precision: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    del softmax_precision
    if qk_matmul_output_mode or lengths is not None:
        raise Unreplayable("this form of it is not known")
    is_flat = q.ndim == 3
    if is_flat:
        q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.where(mask, 0.0, -math.inf).to(q.dtype)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    made = _attend(q, k, v, factor, bias, bool(is_causal), softcap, past)
    if is_flat:
        made = made.transpose(1, 2).reshape(made.shape[0], made.shape[2], -1)
    return made, k, v


@define("MultiHeadAttention", _COMPOSES, domain=MICROSOFT)
def _multi_head_attention(
    q: Tensor, k: Tensor | None = None, v: Tensor | None = None, bias: Tensor | None = None,
    mask: Tensor | None = None, added: Tensor | None = None, *rest: Any, num_heads: int,
    mask_filter_value: float = -10000.0, scale: float | None = None, unidirectional: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    if k is None or v is None or q.ndim != 3 or any(each is not None for each in rest):
        raise Unreplayable("this form of it is not known")
    if bias is not None:
        sizes = [q.shape[-1], q.shape[-1] if k.ndim == 4 else k.shape[-1]]
        parts = torch.split(bias, [*sizes, bias.numel() - sum(sizes)])
        q = q + parts[0]
        if k.ndim == 3:
            k, v = k + parts[1], v + parts[2]
    q = _heads(q, num_heads)
    k, v = (each if each.ndim == 4 else _heads(each, num_heads) for each in (k, v))
    hidden = added
    if mask is not None:
        if mask.ndim != 2:
            raise Unreplayable("this form of it is not known")
        filled = torch.where(mask[:, None, None, :] != 0, 0.0, mask_filter_value).to(q.dtype)
        hidden = filled if hidden is None else hidden + filled
    factor = scale or 1 / math.sqrt(q.shape[-1])
    made = _attend(q, k, v, factor, hidden, bool(unidirectional))
    return made.transpose(1, 2).reshape(made.shape[0], made.shape[2], -1), k, v


@define("Attention", _COMPOSES, domain=MICROSOFT)
def _fused_attention(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, added: Tensor | None = None, *rest: Any, num_heads: int,
    do_rotary: int = 0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Any = (), rotary_embedding_dim: int = 0, scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    del past_present_share_buffer, rotary_embedding_dim
    if do_rotary or past is not None or any(each is not None for each in rest):
        raise Unreplayable("this form of it is not known")
    whole = x @ weight if bias is None else x @ weight + bias
    return attention_of_product(
        whole, mask, added, num_heads, mask_filter_value, list(qkv_hidden_sizes), scale,
        bool(unidirectional),
    )  # fmt: skip


def attention_of_product(
    whole: Tensor, mask: Tensor | None, added: Tensor | None, num_heads: int, filler: float,
    sizes: list[int], scale: float | None, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of what one product gives for queries, keys and values; and the last two."""
    parts = torch.split(whole, sizes or [whole.shape[-1] // 3] * 3, -1)
    q, k, v = (_heads(each, num_heads) for each in parts)
    hidden = added
    if mask is not None:
        if mask.ndim == 1:
            at = torch.arange(k.shape[2], device=whole.device)
            mask = (at[None] < mask[:, None]).int()
        while mask.ndim < 4:
            mask = mask[:, None]
        filled = torch.where(mask != 0, 0.0, filler).to(whole.dtype)
        hidden = filled if hidden is None else hidden + filled
    factor = scale or 1 / math.sqrt(q.shape[-1])
    made = _attend(q, k, v, factor, hidden, causal)
    flat = made.transpose(1, 2).reshape(made.shape[0], made.shape[2], -1)
    return flat, torch.stack([k, v])


@define("GroupQueryAttention", _COMPOSES, domain=MICROSOFT)
def _group_query_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, past_key: Tensor | None,
    past_value: Tensor | None, lengths: Tensor, total: Tensor, cos: Tensor | None = None,
    sin: Tensor | None = None, places: Tensor | None = None, bias: Tensor | None = None,
    *rest: Any, num_heads: int, kv_num_heads: int, do_rotary: int = 0, rotary_interleaved: int = 0,
    local_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    smooth_softmax: int = 0, **forms: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del total
    is_odd = smooth_softmax > 0 or any(each is not None for each in rest)
    if is_odd or any(forms.get(name) for name in _ODD_FORMS) or forms.get("causal", 1) != 1:
        raise Unreplayable("this form of it is not known")
    if k is None or v is None:
        size = q.shape[-1] // (num_heads + 2 * kv_num_heads)
        parts = [num_heads * size, kv_num_heads * size, kv_num_heads * size]
        q, k, v = torch.split(q, parts, -1)
    count = q.shape[1]
    ends = lengths.reshape(-1).long() + 1  # of each sequence, with what was there before
    if bool((ends != ends[0]).any()) and count > 1:
        raise Unreplayable("sequences of several lengths are not known")
    q, k, v = _heads(q, num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    past = ends - count
    if do_rotary and cos is not None and sin is not None:
        at = past[:, None] + torch.arange(count, device=q.device) if places is None else places
        turns = [table[at.long()].unsqueeze(1) for table in (cos, sin)]
        q, k = (_rotated(each, turns[0], turns[1], bool(rotary_interleaved)) for each in (q, k))
    made = []
    keys, values = [], []
    for row in range(q.shape[0]):
        start, end = int(past[row]), int(ends[row])
        seen_k, seen_v = (
            each[row : row + 1]
            if before is None
            else torch.cat([before[row : row + 1, :, :start], each[row : row + 1]], 2)
            for each, before in ((k, past_key), (v, past_value))
        )
        hidden = None if bias is None else bias[min(row, bias.shape[0] - 1)][None, ..., :end]
        if local_window_size > 0:
            rows = torch.arange(count, device=q.device)[:, None] + start
            far = torch.arange(end, device=q.device) <= rows - local_window_size
            window = torch.where(far, -math.inf, 0.0).to(q.dtype)
            hidden = window if hidden is None else hidden + window
        factor = scale or 1 / math.sqrt(q.shape[-1])
        one = q[row : row + 1]
        made.append(_attend(one, seen_k, seen_v, factor, hidden, True, softcap, start))
        keys.append(seen_k)
        values.append(seen_v)
    flat = torch.cat(made).transpose(1, 2).reshape(q.shape[0], count, -1)
    return flat, torch.cat(keys), torch.cat(values)


_ODD_FORMS = ("qk_output", "kv_cache_bit_width", "sliding_window_cache")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Pairs of `x`, turned; what is beyond the tables stays as it is."""
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if interleaved:
        one, other = turned[..., ::2], turned[..., 1::2]
    else:
        one, other = turned.chunk(2, -1)
    first, second = one * cos - other * sin, one * sin + other * cos
    made = torch.stack([first, second], -1).flatten(-2) if interleaved else None
    return torch.cat([torch.cat([first, second], -1) if made is None else made, rest], -1)


@define("RotaryEmbedding", _COMPOSES)
def _rotary(
    x: Tensor, cos: Tensor, sin: Tensor, places: Tensor | None = None, interleaved: int = 0,
    num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    is_flat = x.ndim == 3
    seen = _heads(x, num_heads) if is_flat else x
    cos, sin = (each if places is None else each[places.long()] for each in (cos, sin))
    half = (rotary_embedding_dim or seen.shape[-1]) // 2
    cos, sin = (each[..., :half].unsqueeze(1) for each in (cos, sin))
    made = _rotated(seen, cos, sin, bool(interleaved))
    return made.transpose(1, 2).reshape(x.shape) if is_flat else made


@define("RotaryEmbedding", _COMPOSES, domain=MICROSOFT)
def _own_rotary(
    x: Tensor, places: Tensor, cos: Tensor, sin: Tensor, interleaved: int = 0,
    is_packed_batching: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:  # fmt: skip
    if is_packed_batching or scale != 1.0:
        raise Unreplayable("this form of it is not known")
    is_flat = x.ndim == 3
    count = num_heads or x.shape[-1] // (2 * cos.shape[-1])
    seen = _heads(x, count) if is_flat else x
    at = places.long()
    if at.numel() == 1:
        at = at.reshape(1, 1) + torch.arange(seen.shape[2], device=x.device)[None]
    half = (rotary_embedding_dim or 2 * cos.shape[-1]) // 2
    cos, sin = (table[at][..., :half].unsqueeze(1) for table in (cos, sin))
    made = _rotated(seen, cos, sin, bool(interleaved))
    return made.transpose(1, 2).reshape(x.shape) if is_flat else made


@define("BiasSoftmax", _COMPOSES, domain=MICROSOFT)
def _bias_softmax(x: Tensor, bias: Tensor, axis: int = 1, is_inner_broadcast: int = 1) -> Tensor:
    if not is_inner_broadcast:
        raise Unreplayable("this form of it is not known")
    axis %= x.ndim
    summed = x + bias
    return summed.flatten(axis).softmax(-1).reshape(summed.shape)
