"""A fifth set that nothing was tuned on: two axes by hand, rows of features and shares of a batch.

Gradients go into one flat bucket that is reduced after the pass over the axis of the batch alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.taps.distributed.programs.scenarios import Capture

WIDTH, INNER, BATCH, STEPS = 12, 24, 8, 2


class Unit(nn.Module):
    """A gate and two products, with what came in added at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(WIDTH))
        self.inward = nn.Parameter(torch.empty(INNER, WIDTH))
        self.outward = nn.Parameter(torch.empty(WIDTH, INNER))
        self.group: Any = None  # that holds the other features
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        gated = F.rms_norm(x, (WIDTH,)) * self.scale
        if self.group is not None:
            gated = _Entering.apply(gated, self.group)  # type: ignore[no-untyped-call]
        inner = F.silu(gated @ self.inward.T)
        if self.fault == "inner scaled":
            inner = inner * 1.02
        out = inner @ self.outward.T
        if self.group is not None:
            out = _Leaving.apply(out, self.group)  # type: ignore[no-untyped-call]
        return x + out


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Leaving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:  # noqa: ARG004
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004
        return grad, None


def _units() -> nn.Sequential:
    made = torch.Generator().manual_seed(91)
    model = nn.Sequential(*(Unit() for _ in range(3)))
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3 if parameter.ndim > 1 else 1.0, 0.2, generator=made)
    return model


def _trained(capture: Capture, model: nn.Module, part: Any, reduced: Any) -> None:
    xs = torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(93))
    with capture():
        for x in xs:
            loss: Any = model(part(x)).tanh().mean()
            loss.backward()
            reduced([p.grad for p in model.parameters()])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(2.0 * parameter.grad)  # type: ignore[operator]
                    parameter.grad = None


def whole(capture: Capture) -> None:
    """All on one rank."""
    _trained(capture, _units(), lambda x: x, lambda _: None)


def two_axes(capture: Capture, fault: str = "") -> None:
    """Half of the features on each rank of one axis, half of the batch on each of the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "features"))
    along, across = mesh.get_group("features"), mesh.get_group("batch")
    row, column = mesh.get_local_rank("batch"), mesh.get_local_rank("features")
    model = _units()
    for unit in model:
        assert isinstance(unit, Unit)
        unit.group = along
        unit.inward = nn.Parameter(unit.inward.detach().chunk(2)[column].clone())
        unit.outward = nn.Parameter(unit.outward.detach().chunk(2, 1)[column].clone())
    middle: Any = model[1]
    if fault == "wrong group":
        middle.group = across
    elif dist.get_rank() == 3:
        middle.fault = fault
        if fault == "old rows":
            middle.inward.data[3] *= 1.1

    def reduced(grads: Any) -> None:
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        if fault != "bucket over features":
            dist.all_reduce(flat, group=across)
        else:
            dist.all_reduce(flat, group=along)
        flat /= 2
        for grad, new in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
            grad.copy_(new.view_as(grad))

    _trained(capture, model, lambda x: x.chunk(2)[row], reduced)
