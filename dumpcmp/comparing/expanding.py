"""Gradients of what the target expanded before an op took it, beside golden's of the one row."""

from __future__ import annotations

from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import Value, to_torch, value_of


def unexpanded(value: Value, golden: Record) -> Value:
    """The target's `value`, summed up to the shape of `golden`'s where it is such a gradient.

    A compiler that has no op for a mask of one row makes rows of it for the whole batch.
    """
    if value.shape == golden.shape or not golden.key.slot.is_gradient or not value.dtype.eps:
        return value
    alone = [dim for dim, size in enumerate(golden.shape) if size == 1]
    sizes = tuple(1 if dim in alone else size for dim, size in enumerate(value.shape))
    if sizes != golden.shape:
        return value
    import torch

    wide = to_torch(value).to(torch.float64).sum(dim=alone, keepdim=True)
    return value_of(wide.to(getattr(torch, value.dtype.name)))
