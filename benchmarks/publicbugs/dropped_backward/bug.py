"""Dynamo drops the backward of an autograd.Function under torch.func.grad."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#193279",
    "compiled",
    Guilty(
        (
            "mul",
            "cos",
            "grad",
            "apply",
            "StraightThrough*",
            "custom_function_call",
            "autograd_function_apply",
        )
    ),
    "compiled, the gradient is that of sin and not the declared one",
)


class StraightThrough(torch.autograd.Function):
    """Sine, with a gradient of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.25


def program(x: Tensor) -> Tensor:
    out: Tensor = torch.func.grad(lambda y: StraightThrough.apply(y).sum())(x)  # type: ignore[no-untyped-call]
    return out + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.linspace(-1, 1, 6))
    return out
