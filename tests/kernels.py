"""A kernel in Triton, right or wrong by a factor; only machines with a GPU can import this."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor, nn


# Triton reads annotations as code of the kernel, where only names of its own are known.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scaled_add(x, y, out, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    total = tl.load(x + places, mask=inside) + factor * tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


@torch.library.custom_op("dumpcmp_tests::scaled_add", mutates_args=())
def scaled_add(x: Tensor, y: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _scaled_add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), factor, BLOCK=256)
    return out


class ScaledAdd(nn.Module):
    """x + factor * y, by the kernel."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = torch.ops.dumpcmp_tests.scaled_add(x, y, self.factor)
        return found
