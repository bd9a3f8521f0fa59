"""The shortcuts in arithmetic that torch has leave to take: TF32, sums in short dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Word -> how torch says that it may. With the newer settings the older ones refuse to answer.
_ASKED: dict[str, tuple[Callable[[], bool], Callable[[], str]]] = {
    "tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cuda.matmul.fp32_precision,
    ),
    "tf32-conv": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    ),
    "bf16-reduction": (
        lambda: bool(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        lambda: "",
    ),
    "fp16-reduction": (
        lambda: bool(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        lambda: "",
    ),
    "fp16-accumulation": (
        lambda: bool(torch.backends.cuda.matmul.allow_fp16_accumulation),
        lambda: "",
    ),
}


def shortcuts() -> list[str]:
    """The words of those that kernels on a GPU may take now."""
    return [word for word, (older, newer) in _ASKED.items() if _may(older, newer)]


def _may(older: Callable[[], bool], newer: Callable[[], str]) -> bool:
    try:
        return bool(older())
    except RuntimeError:
        return newer() in ("tf32", "bf16")
