"""Programs at random, of all that a capture could disturb: each is a module made from a seed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Move = Callable[["Program", Tensor], Any]
MOVES: dict[str, Move] = {}
UNTRACEABLE = {"with_errors_of_torch"}


def move(act: Move) -> Move:
    MOVES[act.__name__] = act
    return act


class MineError(Exception):
    """What these programs raise."""


class Program(nn.Module):
    """Does `length` things at random to a tensor of shape (4, 6); the same for the same seed.

    One that is to be `traced` does nothing that ends a program under torch.compile, too.
    """

    def __init__(self, seed: int, *, traced: bool = False, length: int = 10) -> None:
        super().__init__()
        draws = random.Random(seed)
        torch.manual_seed(seed)
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(6))
        self.num_hooked = 0
        self.linear.register_forward_hook(self._hooked)
        known = sorted(MOVES.keys() - UNTRACEABLE if traced else MOVES)
        self.moves = draws.choices(known, k=length)
        self.raises = draws.random() < 0.2

    def _hooked(self, module: nn.Module, args: Any, result: Tensor) -> Tensor:
        self.num_hooked += 1
        return result * 1.5

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        for name in self.moves:
            x = MOVES[name](self, x)
        if self.raises:
            raise MineError(f"after {len(self.moves)} moves")
        return x


@move
def in_place(program: Program, x: Tensor) -> Any:
    y = x.clone()
    y.mul_(1.25).add_(0.5).clamp_(-9, 9)
    y[1:3] = y[1:3] - 1
    return y


@move
def through_views(program: Program, x: Tensor) -> Any:
    y = x.clone()
    left, right = y[:, :3], y[:, 3:]
    left.copy_(right.tanh())
    y.t()[0].add_(1)
    return y.view(2, 2, 6).transpose(0, 1).reshape(4, 6)


@move
def at_random(program: Program, x: Tensor) -> Any:
    noise = torch.randn_like(x) + torch.rand(6)
    return program.drop(x) + 0.1 * noise + torch.empty(6).uniform_(0, 1)


@move
def with_modules(program: Program, x: Tensor) -> Any:
    return program.norm(program.linear(x) + program.linear(x))


@move
def with_buffers(program: Program, x: Tensor) -> Any:
    program.seen += x.detach().mean(0)  # type: ignore[operator]
    return x + program.seen


@move
def under_autocast(program: Program, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ program.linear.weight
    return y.float()


@move
def with_functorch(program: Program, x: Tensor) -> Any:
    scaled = torch.func.vmap(lambda row: row * row.sum())(x)
    slope = torch.func.grad(lambda v: (v.sin() * 2).sum())(x.detach())
    return scaled.tanh() + slope


@move
def with_errors(program: Program, x: Tensor) -> Any:
    try:
        raise MineError("caught")
    except MineError as error:
        return x + len(str(error)) % 7


@move
def with_errors_of_torch(program: Program, x: Tensor) -> Any:
    try:
        x @ torch.ones(5, 5)
    except RuntimeError as error:
        return x + len(str(error)) % 7
    raise AssertionError("the shapes do not fit")


@move
def with_warnings(program: Program, x: Tensor) -> Any:
    warnings.warn(f"so many rows: {len(x)}", UserWarning, stacklevel=1)
    return x.relu()


@move
def with_gradients(program: Program, x: Tensor) -> Any:
    with torch.no_grad():
        shift = x.softmax(-1).sum()
    y = F.gelu(x) + shift
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 0.5)  # type: ignore[no-untyped-call]
    return y


@move
def by_choice(program: Program, x: Tensor) -> Any:
    if float(x.detach().sum()) > 0:
        return x.sort(dim=1).values
    return x.topk(6, dim=1).values.flip(1)


@move
def of_odd_kinds(program: Program, x: Tensor) -> Any:
    wide = x.double().to_sparse().to_dense().float()
    spectrum = torch.fft.rfft(wide).abs().sum()
    return torch.where(x > 0, x, wide) + spectrum.to(torch.int64) % 3
