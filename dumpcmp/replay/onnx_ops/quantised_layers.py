"""Whole layers of integers that ONNX Runtime fuses: attention, embeddings, recurrent layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.attending import attention_of_product
from dumpcmp.replay.onnx_ops.integer_codes import decoded, dynamically_encoded, without_zero
from dumpcmp.replay.onnx_ops.normalising import embedded_norm
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define
from dumpcmp.replay.onnx_ops.recurrent import lstm
from dumpcmp.replay.unreplayable import Unreplayable

_COMPOSES, _NORMALISES = FunctionKind.COMPOSES, FunctionKind.NORMALISES


@define("QAttention", _COMPOSES, domain=MICROSOFT, by_shapes=True)
def _quantised_attention(
    x: Tensor, weight: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor,
    mask: Tensor | None = None, x_zero: Tensor | None = None, weight_zero: Tensor | None = None,
    past: Tensor | None = None, *, num_heads: int, unidirectional: int = 0, do_rotary: int = 0,
    mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del past_present_share_buffer
    if past is not None or do_rotary:
        raise Unreplayable("this form of it is not known")
    product = without_zero(x, x_zero, -2) @ without_zero(weight, weight_zero, -1)
    whole = (product * (x_scale * weight_scale).double()).to(bias.dtype) + bias
    return attention_of_product(
        whole, mask, None, num_heads, mask_filter_value, [], scale, bool(unidirectional)
    )


@define("QEmbedLayerNormalization", _NORMALISES, domain=MICROSOFT, by_shapes=True)
def _quantised_embedding(
    ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    gamma: Tensor, beta: Tensor, mask: Tensor | None, word_scale: Tensor, place_scale: Tensor,
    kind_scale: Tensor | None, gamma_scale: Tensor, beta_scale: Tensor, word_zero: Tensor,
    place_zero: Tensor, kind_zero: Tensor | None, gamma_zero: Tensor, beta_zero: Tensor,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    word = decoded(words, word_scale, word_zero)
    place = decoded(places, place_scale, place_zero)
    kind = None
    if kinds is not None and kind_scale is not None:
        kind = decoded(kinds, kind_scale, kind_zero)
    scale, shift = decoded(gamma, gamma_scale, gamma_zero), decoded(beta, beta_scale, beta_zero)
    made, seen, _ = embedded_norm(
        ids, segments, word, place, kind, scale, shift, mask, None, epsilon
    )
    return made, seen


@define("DynamicQuantizeLSTM", _COMPOSES, domain=MICROSOFT, by_shapes=True)
def _quantised_lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, h: Tensor | None,
    c: Tensor | None, peephole: Tensor | None, w_scale: Tensor, w_zero: Tensor, r_scale: Tensor,
    r_zero: Tensor, **attributes: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """An LSTM whose weights are codes, and what they are multiplied with is rounded to codes."""
    if x.shape[1] > 1:
        raise Unreplayable("how its state is rounded depends on how many threads share the batch")
    inward = _by_direction(w, w_scale.to(x.dtype), w_zero)
    onward = _by_direction(r, r_scale.to(x.dtype), r_zero)
    return lstm(x, inward, onward, b, lengths, h, c, peephole, rounds=_rounded, **attributes)


def _by_direction(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Weights in the order in which an LSTM of floats has them: directions, gates, inputs."""
    scale, zero = (each.reshape(codes.shape[0], 1, -1) for each in (scale, zero))
    return ((codes.to(scale.dtype) - zero.to(scale.dtype)) * scale).mT


def _rounded(x: Tensor) -> Tensor:
    codes, scale, zero = dynamically_encoded(x)
    return decoded(codes, scale, zero)
