"""Ops of the backward pass, which the dispatcher shows: run again, sound ones are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import slots_in
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.replay.standins import AttentionBackward
from dumpcmp.replay.unreplayable import Unreplayable

Body = Callable[[Any, Tensor], Tensor]  # of a Net and its embedded tokens


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body, self.embed, self.head = body, nn.Embedding(20, 16), nn.Linear(16, 5)
        self.linear, self.layer_norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.batch_norm, self.group_norm = nn.BatchNorm1d(16), nn.GroupNorm(4, 16)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self, self.embed(ids)))
        return y


def attended(_: Any, x: Tensor) -> Tensor:
    heads = x.reshape(2, 6, 2, 8).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return mixed.transpose(1, 2).reshape(x.shape)


def pooled(_: Any, x: Tensor) -> Tensor:
    image = x.reshape(2, 4, 4, 6)
    means = F.avg_pool2d(image, 2).mean() + F.adaptive_avg_pool2d(image, 3).mean()
    larger = F.interpolate(image, scale_factor=2.0, mode="nearest").mean()
    smooth = F.interpolate(image, scale_factor=2.0, mode="bilinear").mean()
    return x * (F.max_pool2d(image, 2).mean() + means + larger + smooth)


def bent(_: Any, x: Tensor) -> Tensor:
    curves: list[Any] = [
        F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.hardswish, F.hardsigmoid, F.mish,
        F.leaky_relu, F.softplus, F.elu, F.hardtanh, F.logsigmoid,
    ]  # fmt: skip
    y: Tensor = x + sum(curve(x) for curve in curves)
    return y


def lost(_: Any, x: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    target = torch.arange(len(rows)) % rows.shape[-1]
    losses = F.cross_entropy(rows, target) + F.mse_loss(x, x.detach() * 0.5)
    return x * (losses + F.smooth_l1_loss(x, x.detach() * 0.5) + F.huber_loss(x, x.detach() * 2))


BODIES: dict[str, Body] = {
    "linear": lambda net, x: net.linear(x),
    "layer norm": lambda net, x: net.layer_norm(x),
    "batch norm": lambda net, x: net.batch_norm(x.transpose(1, 2)).transpose(1, 2),
    "group norm": lambda net, x: net.group_norm(x.transpose(1, 2)).transpose(1, 2),
    "convolution": lambda net, x: net.convolution(x.transpose(1, 2)).transpose(1, 2),
    "softmax": lambda _, x: torch.softmax(x, -1) + torch.log_softmax(x, 1),
    "attention": attended,
    "pools": pooled,
    "curves": bent,
    "losses": lost,
    "pieces": lambda _, x: x[:, 1:].sum(1, True) + x[:, 0:1] * x.select(1, 2).unsqueeze(1) + x,
}


def backward_calls(
    body: Body, dtype: torch.dtype, path: Path
) -> tuple[dumpcmp.Archive, list[Call]]:
    torch.manual_seed(0)
    model = Net(body).to(dtype)
    with dumpcmp.capture(model, path, mode="aten", backward=True):
        model(torch.arange(12).view(2, 6)).square().mean().backward()
    archive = dumpcmp.Archive(path)
    return archive, [call for call in archive.calls.values() if "backward." in call.op.function]


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_sound_ops_are_right_and_others_are_not(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    archive, calls = backward_calls(BODIES[name], dtype, tmp_path / "d")
    num_wrong = 0
    for call in calls:

        def tensor(slot: str, call: Call = call) -> Tensor:
            return archive.tensor(call.op, step=0, call=call.call, slot=slot, model=call.model)

        try:
            given = {slot: tensor(slot) for slot in slots_in(call.arguments)}
            again = rerun(call, given)
        except (Unreplayable, dumpcmp.ArchiveError) as error:
            assert "memory" in error.message, f"{call.op}: {error.message}"
            continue
        for slot in again.outputs:
            got = tensor(slot)
            found = hold(again, slot, got)
            assert not (found.unknown or wrong(found)), f"{call.op} {slot}: {found}"
            if got.is_floating_point() and float(got.abs().max()) > 1e-3:
                other = hold(again, slot, got * 1.25)
                assert wrong(other), f"{call.op} {slot}: a quarter more is not seen: {other}"
                num_wrong += 1
    assert num_wrong >= 3


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
def test_gradients_of_attention_are_left_of_larger_terms(heads: int, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    grad, query = (torch.randn(1, 4, 6, 8, generator=generator).double() for _ in range(2))
    key, value = (torch.randn(1, heads, 6, 8, generator=generator).double() for _ in range(2))
    given = AttentionBackward(grad, query, key, value, None, 0.0, is_causal, None)
    for slope, terms in zip(given.slopes(), given.terms(), strict=True):
        assert slope.shape == terms.shape and bool((terms >= slope.abs() * (1 - 1e-12)).all())
    first = given.slopes()[0][0, :, 0].abs().max()
    assert (float(first) < 1e-12) is is_causal  # who sees nobody else is pulled by nothing
    assert float(given.terms()[0][0, :, 0].min()) > 1e-3


@pytest.mark.parametrize("op", ["native_layer_norm", "native_batch_norm"])
def test_a_mean_that_is_nothing_but_rounding_is_right(op: str) -> None:
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(0 if "batch" in op else 1, keepdim=True)
    slots = "".join(f',{{"slot":"input.{number}"}}' for number in (1, 2))
    rest = ",null,null,true,0.1,1e-05" if "batch" in op else ",1e-05"
    shape = "" if "batch" in op else ",[16]"
    call = Call(
        "M", 0, Op(f"m/aten.{op}"), 0, 0, f"aten.{op}.default",
        arguments=f'{{"args":[{{"slot":"input.0"}}{shape}{slots}{rest}]}}',
    )  # fmt: skip
    given = {"input.0": x, "input.1": torch.ones(16), "input.2": torch.zeros(16)}
    again = rerun(call, given)
    mean = again.outputs["output.1"]
    moved = (mean + 2.0**-25 * torch.randn(mean.shape).sign() * x.abs().mean()).float()
    assert not wrong(hold(again, "output.1", moved))
    assert wrong(hold(again, "output.1", (mean + 1e-4).float()))


def test_a_gradient_that_vanishes_is_left_of_what_cancels() -> None:
    call = Call(
        "M", 0, Op("m/backward.aten.native_layer_norm_backward"), 0, 0,
        "aten.native_layer_norm_backward.default",
        arguments='{"args":[{"slot":"input.0"},{"slot":"input.1"},[16],{"slot":"input.2"},'
        '{"slot":"input.3"},{"slot":"input.4"},{"slot":"input.5"},[true,true,true]]}',
    )  # fmt: skip
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    half = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    given = {
        "input.0": torch.cat([half, -half]), "input.1": x, "input.2": x.mean(1, keepdim=True),
        "input.3": x.var(1, unbiased=False, keepdim=True).add(1e-5).rsqrt(),
        "input.4": torch.ones(16), "input.5": torch.zeros(16),
    }  # fmt: skip
    again = rerun(call, given)
    assert float(again.outputs["output.2"].abs().max()) == 0.0
    assert not wrong(hold(again, "output.2", torch.full((16,), 1e-8)))
    assert wrong(hold(again, "output.2", torch.full((16,), 1e-3)))
