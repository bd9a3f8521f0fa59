"""Small programs on two ranks, and what one process does: torchrun -m me DIRECTORY."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp

WIDTH = 8


class Whole(nn.Module):
    """What all of them compute: a norm, a wide layer and its like back, a residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        with torch.no_grad():
            self.norm.weight.copy_(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))  # type: ignore[no-any-return]


def given() -> Tensor:
    return torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(5))


def summed(part: Tensor) -> Tensor:
    part = part.clone()
    dist.all_reduce(part)
    return part


class Split(Whole):
    """Rows of `up` and columns of `down` on each rank; the bias is added after the sum."""

    def __init__(self, eps: float = 1e-5, is_biased: bool = False, is_summed: bool = True) -> None:
        super().__init__()
        self.eps, self.is_biased, self.is_summed = eps, is_biased, is_summed

    def forward(self, x: Tensor) -> Tensor:
        rank = dist.get_rank()
        mine = slice(rank * WIDTH, (rank + 1) * WIDTH)
        y = F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, self.eps if rank else 1e-5)
        hidden = F.gelu(F.linear(y, self.up.weight[mine], self.up.bias[mine]))
        bias = self.down.bias if self.is_biased else None
        part = F.linear(hidden, self.down.weight[:, mine], bias)
        whole = summed(part) if self.is_summed else part
        return self.head(x + (whole if self.is_biased else whole + self.down.bias))  # type: ignore[no-any-return]


class Rows(Whole):
    """Each rank has its rows of the batch."""

    def __init__(self, is_same: bool = False) -> None:
        super().__init__()
        self.is_same = is_same

    def forward(self, x: Tensor) -> Tensor:
        rank = 0 if self.is_same else dist.get_rank()
        return super().forward(x[2 * rank : 2 * rank + 2])


class Gathered(Whole):
    """Each rank has its rows, and all of them are returned everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        rank = dist.get_rank()
        part = super().forward(x[2 * rank : 2 * rank + 2])
        parts = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(parts, part)
        return torch.cat(parts)


class Reduced(Whole):
    """One rank alone gets the sum, and returns it."""

    def forward(self, x: Tensor) -> Tensor:
        rank = dist.get_rank()
        mine = slice(rank * WIDTH, (rank + 1) * WIDTH)
        y = self.norm(x)
        hidden = F.gelu(F.linear(y, self.up.weight[mine], self.up.bias[mine]))
        part = F.linear(hidden, self.down.weight[:, mine])
        dist.reduce(part, 0)
        if rank:
            return x.clone()
        return self.head(x + (part + self.down.bias))  # type: ignore[no-any-return]


class Staged(Whole):
    """The first rank hands on what the second goes on from."""

    def __init__(self, is_normed: bool = True) -> None:
        super().__init__()
        self.is_normed = is_normed

    def forward(self, x: Tensor) -> Tensor:
        if dist.get_rank() == 0:
            hidden = F.gelu(self.up(self.norm(x) if self.is_normed else x))
            dist.send(hidden, 1)
            return hidden
        hidden = torch.empty(4, 6, 2 * WIDTH)
        dist.recv(hidden, 0)
        return self.head(x + self.down(hidden))  # type: ignore[no-any-return]


def stale() -> Whole:
    model = Split()
    if dist.get_rank():
        with torch.no_grad():
            model.norm.weight.mul_(1.01)
    return model


SOUND: dict[str, Callable[[], Whole]] = {
    "split": Split, "rows": Rows, "gathered": Gathered, "reduced": Reduced, "staged": Staged,
}  # fmt: skip
WRONG: dict[str, Callable[[], Whole]] = {
    "eps": lambda: Split(eps=1e-2),
    "a bias on each rank": lambda: Split(is_biased=True),
    "not summed": lambda: Split(is_summed=False),
    "the same rows": lambda: Rows(is_same=True),
    "no norm": lambda: Staged(is_normed=False),
    "stale": stale,
}


def main(room: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, make in (SOUND | WRONG).items():
        dist.barrier()
        model = make()
        with torch.no_grad(), dumpcmp.capture(model, room / name):
            model(given())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
