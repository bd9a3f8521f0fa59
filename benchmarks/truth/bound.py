"""Whether an error can be told from rounding at all: the op again in float64, and what it rounds.

Written for this table alone, from the call as it was planted: nothing here asks the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.truth.noise import is_float, widened
from benchmarks.truth.watching import CASTS, MOVES, Args, Kwargs, Run, flat, mapped, one_of

SINGLE = 2.0**-23
CONTRACTIONS = one_of(
    """
    linear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv_transpose2d sum mean add cumsum
    index_add scatter_add avg_pool2d adaptive_avg_pool2d
    """
)
NORMS = one_of("layer_norm group_norm rms_norm batch_norm instance_norm")
DEEP = one_of("lstm gru scaled_dot_product_attention logsumexp log_softmax cross_entropy")


@dataclass(frozen=True, slots=True)
class Introduced:
    """What a call added to what its inputs entail, beside what it may round."""

    error: float = 0.0  # |got - exact| / |exact|
    row: float = 0.0  # of the worst row, over its norm and the mean norm of rows
    gain: float = 0.0  # got resembles (1 + gain) times what is exact
    bound: float = math.inf
    eps: float = 0.0
    other: bool = False  # NaN or bits differ that no rounding changes

    @property
    def detectable(self) -> bool:
        beyond = self.error > self.bound or self.row > 2 * self.bound
        return self.other or beyond or abs(self.gain) > self.eps / 8

    def __str__(self) -> str:
        if self.other:
            return "bits that nothing rounds"
        sizes = (self.error, self.row, self.gain, self.bound)
        return "error {:.2g}, row {:.2g}, gain {:.2g}, bound {:.2g}".format(*sizes)


def wide_result(func: Run, args: Args, kwargs: Kwargs, name: str) -> Any:
    """The call in float64, or None where there is no such thing."""
    with torch.no_grad():
        if name in CASTS:
            return args[0].double() if is_float(args[0]) else None
        try:
            return func(*mapped(widened, args), **mapped(widened, kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return None


def condition(func: Run, args: Args, kwargs: Kwargs, name: str, exact: Tensor) -> float:
    """How much rounding of what is summed weighs beside the sum."""
    size = float(exact.norm())
    if name in CONTRACTIONS and size:
        positive = func(*mapped(_absolute, args), **mapped(_absolute, kwargs))
        return max(1.0, float(next(flat(positive)).norm()) / size)
    if name == "sub" and size:
        return sum(float(_absolute(x).norm()) for x in args[:2] if is_float(x)) / size
    if name in NORMS:
        x = args[0].double()
        rows = x.reshape(x.shape[0], -1) if name != "layer_norm" else x.reshape(-1, x.shape[-1])
        shares = rows.norm(dim=-1) / rows.std(-1).clamp_min(1e-30)
        return max(1.0, float(shares.max()))
    return 8.0 if name in DEEP else 1.0


def _absolute(value: Any) -> Any:
    wide = widened(value)
    return wide.abs() if is_float(wide) else wide


def introduced(
    func: Run, args: Args, kwargs: Kwargs, name: str, right: Any, got: Any
) -> Introduced:
    """Hold what a call gave against what it should have given."""
    ours, theirs = _tensors(right), _tensors(got)
    if name in MOVES or not any(is_float(x) for x in ours):
        return Introduced(other=not _same(ours, theirs))
    exact = wide_result(func, args, kwargs, name)
    wide = _tensors(exact if exact is not None else mapped(widened, right))
    worst = Introduced()
    for each, mine in zip(wide, theirs, strict=True):
        if is_float(mine):
            kappa = condition(func, args, kwargs, name, each)
            worst = max(worst, measured(each, mine, kappa), key=_weight)
    return worst


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in flat(tree) if isinstance(x, Tensor)]


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(
        torch.allclose(a, b, 0, 0, equal_nan=True) if is_float(a) else torch.equal(a, b)
        for a, b in pairs
    )


def _weight(found: Introduced) -> float:
    if found.other:
        return math.inf
    parts = (found.error, found.row / 2, 8 * abs(found.gain) / (found.eps or 1) * found.bound)
    return max(parts) / found.bound if found.bound < math.inf else 0.0


def measured(exact: Tensor, got: Tensor, kappa: float) -> Introduced:
    """How far `got` lies from `exact`, beside 0.75 eps and what sums of float32 round."""
    eps = torch.finfo(got.dtype).eps
    wide = got.detach().double()
    exact = exact.detach().to(got.dtype).double() if _overflows(exact, got) else exact.detach()
    finite = exact.isfinite() & wide.isfinite()
    if not torch.equal(exact.isfinite(), wide.isfinite()):
        return Introduced(other=True, eps=eps)
    exact, wide = exact.where(finite, 0), wide.where(finite, 0)
    size, error = float(exact.norm()), wide - exact
    bound = 0.75 * eps + 2 * SINGLE * kappa
    if not size:
        return Introduced(other=bool(error.norm() > 0), eps=eps, bound=bound)
    rows = exact.shape[-1] if exact.ndim else 1
    norms, errors = (x.reshape(-1, rows).norm(dim=-1) for x in (exact, error))
    row = float((errors / (norms + norms.mean())).max())
    gain = float((error * exact).sum()) / size**2
    return Introduced(float(error.norm()) / size, row, gain, bound, eps)


def _overflows(exact: Tensor, got: Tensor) -> bool:
    return bool((exact.abs() > torch.finfo(got.dtype).max).any())
