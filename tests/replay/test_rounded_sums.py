"""Norms with rounded sums: they are torch's where nothing rounds, and explain rounding alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.backward import GRADIENT, BackwardRerun, Slope
from dumpcmp.replay.chains import Chain
from dumpcmp.replay.holding import hold
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction
from dumpcmp.replay.rounded_sums import RoundedSums, is_made_of_sums
from dumpcmp.replay.unrounded import DRAWS, leeway_of
from tests.replay.test_backward import numbers, recorded

Norm = tuple[Callable[..., Tensor], list[Any]]

X = numbers(4, 6, 5, 3, dtype=torch.float64)
CHANNELS = [numbers(6, seed=seed, dtype=torch.float64) for seed in (1, 2)]
EACH = [numbers(5, 3, seed=seed, dtype=torch.float64) for seed in (3, 4)]
NORMS: dict[str, Norm] = {
    "batch_norm": (F.batch_norm, [None, None, *CHANNELS, True, 0.1, 1e-2]),
    "group_norm": (F.group_norm, [3, *CHANNELS, 1e-2]),
    "instance_norm": (F.instance_norm, [None, None, *CHANNELS, True, 0.1, 1e-2]),
    "layer_norm": (F.layer_norm, [(5, 3), *EACH, 1e-2]),
}


@pytest.mark.parametrize("name", NORMS)
def test_in_float64_they_are_what_torch_gives(name: str) -> None:
    run, more = NORMS[name]
    args = [one.clone().requires_grad_() if isinstance(one, Tensor) else one for one in [X, *more]]
    function = ReplayFunction(run, name, FunctionKind.NORMALISES)
    draw = torch.Generator().manual_seed(0)
    made = RoundedSums(torch.float64, draw).normalised(function, CallArguments(tuple(args), {}))
    leaves, grad = [one for one in args if isinstance(one, Tensor)], numbers(*X.shape, seed=9)
    for own, known in zip(
        (made, *torch.autograd.grad(made, leaves, grad.double())),
        (run(*args), *torch.autograd.grad(run(*args), leaves, grad.double())),
        strict=True,
    ):
        torch.testing.assert_close(own, known, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_training", [True, False])
def test_moments_that_are_known_before_are_no_sums(is_training: bool) -> None:
    function = ReplayFunction(F.batch_norm, "batch_norm", FunctionKind.NORMALISES)
    given = CallArguments((X, X[0, :, 0, 0], X[0, :, 0, 0], None, None, is_training), {})
    assert is_made_of_sums(function, given) is is_training


def one_by_one(rows: Tensor) -> Tensor:
    return torch.from_numpy(np.add.accumulate(rows.numpy(), axis=1)[:, -1:])


def batch_norm_backward(x: Tensor, grad: Tensor) -> Tensor:
    """As a kernel computes it that adds one number after the other, all in float32."""
    rows, given = (one.transpose(0, 1).reshape(x.shape[1], -1) for one in (x, grad))
    count = rows.shape[1]
    centred = rows - one_by_one(rows) / count
    scale = torch.rsqrt(one_by_one(centred.square()) / count + 1e-5)
    along = one_by_one(given * centred) / count * scale * scale
    found = (given - centred * along - one_by_one(given) / count) * scale
    return found.reshape(x.transpose(0, 1).shape).transpose(0, 1)


def before_a_norm(factor: float) -> tuple[str, str]:
    """What is wrong with the gradient of a bias before a norm, by itself and with sums that round.

    It is `factor` times what a kernel gives, and the share of the terms that does not cancel.
    """
    x, bias = numbers(8, 16, 16, 16), numbers(16, 1, 1, seed=1)
    mask = numbers(8, 16, 16, 16, seed=2) > 0
    grad = torch.where(mask, numbers(8, 16, 1, 1, seed=3), 0.0)  # as a pool and a relu give it back
    got = batch_norm_backward(x + bias, grad).double().sum((0, 2, 3)).reshape(16, 1, 1)
    got += (factor - 1) * grad.double().sum((0, 2, 3)).reshape(16, 1, 1)
    add, given = recorded(0, torch.add, x, bias)
    norm, more = recorded(1, F.batch_norm, x, None, None, None, None, True)
    del more[1, "input.0"]
    region = Chain([add, norm], {(1, "input.0"): (0, "output.0")})
    again = BackwardRerun(
        Slope(region, {**given, **more}, [(0, "input.1")], {(1, "output.0"): grad})
    )
    plain = hold(again.rated(), GRADIENT, got.float())
    draw = torch.Generator().manual_seed(0)
    room = leeway_of((again.with_rounded_sums(draw) for _ in range(DRAWS)), again.gradient)
    return wrong(plain), wrong(room.held(again.rated(), GRADIENT, got.float(), plain))


def test_what_is_left_of_a_bias_before_a_norm_is_what_its_sums_round() -> None:
    by_itself, with_sums = before_a_norm(1.0)
    assert by_itself and not with_sums


def test_a_sum_that_is_larger_by_a_thousandth_is_no_rounding() -> None:
    assert all(before_a_norm(1.001))
