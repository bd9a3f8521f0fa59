"""Dynamo drops the jvp of an autograd.Function under torch.func.jvp."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#192985",
    "compiled",
    Guilty(("mul", "cos", "jvp", "sin", "apply", "Flat*", "custom_function_call")),
    "compiled, the tangent is that of sin and not the declared one",
    held_out=True,
)


class Flat(torch.autograd.Function):
    """Sine, with a tangent of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Any) -> None:
        ctx.save_for_forward(*inputs)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.25

    @staticmethod
    def jvp(_ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 0.25


def program(x: Tensor) -> Tensor:
    _, out = torch.func.jvp(Flat.apply, (x,), (torch.ones_like(x),))
    return out + 1  # type: ignore[no-any-return]


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.linspace(-1, 1, 6))
    return out
