"""What a composite goes through on its way: values that another program may have as its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.nouns.op_names import OpTable


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Iterator[Tensor]:  # fmt: skip
    """Scores, scores with their mask, and the shares."""
    del value, dropout_p
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    yield scores
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    yield scores
    yield scores.softmax(-1)


def _linear(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Iterator[Tensor]:
    """The product without its bias."""
    if bias is not None:
        yield F.linear(given, weight)


# What gives them, of the arguments that the function takes.
INNER_VALUES: OpTable[Callable[..., Iterator[Any]]] = OpTable(
    {"scaled_dot_product_attention": _attention, "linear": _linear}
)
