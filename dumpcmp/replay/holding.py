"""Holds what a run gave out against the replay of it: numbers and no opinion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import Dtype, dtype_named
from dumpcmp.replay.running import Rerun

_LEAST = 2.0**-40  # of the terms of sums: what is left of them is taken to be no smaller


def hold(rerun: Rerun, slot: str, got: Tensor) -> Replay:
    """What `got`, the recorded value of `slot`, differs in from the replay."""
    expected = rerun.outputs.get(slot)
    if expected is None:
        return Replay(unknown=f"its replay gives no {slot}")
    if expected.shape != got.shape:
        said = f"{list(expected.shape)} and not {list(got.shape)}"
        return Replay(unknown=f"its replay gives {slot} the shape {said}")
    got = got.detach().to(expected.device)
    dtype = dtype_named(str(got.dtype))
    if rerun.is_exact or not dtype.eps:
        return _exactly(expected, got, dtype, rerun.num_ops)
    return _roundly(rerun, slot, expected, got, dtype)


def _exactly(expected: Tensor, got: Tensor, dtype: Dtype, num_ops: int) -> Replay:
    known = expected.to(got.dtype)
    differs = known != got
    if dtype.eps:
        differs &= ~(torch.isnan(known) & torch.isnan(got))
        differs |= _sign(known) != _sign(got)
    wrong = int(differs.sum())
    finite = bool((torch.isfinite(known) == torch.isfinite(got)).all()) if dtype.eps else True
    return Replay(
        eps=dtype.eps, count=got.numel(), is_exact=True, mismatched=wrong, num_ops=num_ops,
        nonfinite_agree=finite, introduced=wrong / max(1, got.numel()),
    )  # fmt: skip


def _sign(tensor: Tensor) -> Tensor:
    """Which elements are negative, -0.0 too; NaN has no sign."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
        return (torch.signbit(tensor) & ~torch.isnan(tensor)).any(-1)
    return torch.signbit(tensor.float()) & ~torch.isnan(tensor)


def _roundly(rerun: Rerun, slot: str, expected: Tensor, got: Tensor, dtype: Dtype) -> Replay:
    if expected.is_complex():
        expected, got = torch.view_as_real(expected), torch.view_as_real(got)
    wide, rounded = got.double(), expected.to(got.dtype).double()
    agree = _nonfinite_agree(wide, rounded)
    finite = torch.isfinite(wide) & torch.isfinite(expected)
    expected = torch.where(finite, expected, 0.0)
    d = torch.where(finite, wide - expected, 0.0)
    off = torch.where(finite & torch.isfinite(rounded), wide - rounded, 0.0)
    condition = rerun.condition.get(slot, 1.0)
    norm = _norm(expected)
    terms = rerun.terms.get(slot)
    if terms is not None:
        norm = max(norm, _LEAST * _norm(terms[torch.isfinite(terms)].double()))
    ideal = torch.where(finite & torch.isfinite(rounded), rounded - expected, 0.0)
    count = max(1, got.numel())
    return Replay(
        eps=max(dtype.eps, 2 * _share(_norm(ideal), norm)),
        introduced=_share(_norm(d), norm),
        worst_row=_worst_row(d, expected, norm),
        gain=_share(float((off * expected).sum()), norm * norm),
        offset=_share(float(off.sum()) / count, norm / math.sqrt(count)),
        count=got.numel(),
        condition=condition,
        noise=rerun.noise.get(slot, 0.0),
        nonfinite_agree=agree,
        num_ops=rerun.num_ops,
    )


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.copysign(math.inf, part)


def _worst_row(d: Tensor, expected: Tensor, norm: float) -> float:
    """The largest error of a row, over its own norm and the mean norm of rows."""
    if not d.numel():
        return 0.0
    width = d.shape[-1] if d.ndim else 1
    errors, norms = (torch.linalg.vector_norm(t.reshape(-1, width), dim=1) for t in (d, expected))
    level = norms + norm / math.sqrt(norms.numel())
    return float((errors / torch.where(level > 0, level, 1.0)).max())


def _nonfinite_agree(got: Tensor, rounded: Tensor) -> bool:
    same = (got == rounded) | (torch.isnan(got) & torch.isnan(rounded))
    return bool((same | (torch.isfinite(got) & torch.isfinite(rounded))).all())
