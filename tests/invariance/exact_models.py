"""A small decoder of whole numbers, exact in any order of sums, and faults of its schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8


class Exact(nn.Module):
    """Attention without a softmax, over a cache; every number in it is a small whole one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def whole(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randint(-1, 2, shape, generator=generator).float())

        self.embed, self.mix, self.head = nn.Embedding(32, WIDTH), Mix(), Head()
        self.embed.weight, self.mix.weight, self.head.weight = (
            whole(32, WIDTH), whole(WIDTH, WIDTH), whole(32, WIDTH)
        )  # fmt: skip
        self.fault: Callable[[Tensor, dict[str, Any]], Tensor] = lambda x, _: x
        self.calls = 0

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        self.calls += 1
        x = self.embed(input_ids)
        given = {"mask": attention_mask, "cache": cache, "positions": position_ids,
                 "calls": self.calls}  # fmt: skip
        x = self.mix(x, self.fault, given)
        seen = x if cache is None else torch.cat([cache, x], 1)
        past = seen.shape[1] - x.shape[1]
        is_seen = torch.ones(x.shape[1], seen.shape[1]).tril(past).expand(len(x), -1, -1)
        if attention_mask is not None:
            is_seen = is_seen * attention_mask[:, None, -seen.shape[1] :]
        scores = torch.matmul(x, seen.transpose(1, 2)) * is_seen
        return self.head(torch.matmul(scores, seen)), seen


class Mix(nn.Module):
    """A linear layer, after which a fault may be planted."""

    weight: nn.Parameter

    def forward(self, x: Tensor, fault: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
        return fault(nn.functional.linear(x, self.weight), given)


class Head(nn.Module):
    """Logits."""

    weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def by_batch(x: Tensor, _: dict[str, Any]) -> Tensor:
    """A kernel that is another from four sequences on."""
    return torch.add(x, 1.0 if len(x) >= 4 else 0.0)


def by_place(x: Tensor, _: dict[str, Any]) -> Tensor:
    """A kernel that treats the first sequence of a batch otherwise."""
    return torch.add(x, torch.arange(len(x))[:, None, None].eq(0).float())


def by_padding(x: Tensor, given: dict[str, Any]) -> Tensor:
    """Padding that reaches into what is no padding."""
    mask = given["mask"]
    padded = 0.0 if mask is None else float((mask == 0).sum())
    return torch.add(x, padded)


def by_chunk(x: Tensor, given: dict[str, Any]) -> Tensor:
    """A state that begins anew with each chunk."""
    return torch.add(x, 0.0 if given["cache"] is None else 1.0)


def by_step(x: Tensor, given: dict[str, Any]) -> Tensor:
    """A kernel of its own for single tokens."""
    return torch.add(x, 1.0 if x.shape[1] == 1 else 0.0)


def by_threads(x: Tensor, _: dict[str, Any]) -> Tensor:
    """Sums that depend on how many threads there are."""
    return torch.add(x, float(torch.get_num_threads() == 1))


def by_run(x: Tensor, given: dict[str, Any]) -> Tensor:
    """Numbers that are others in each run."""
    return torch.add(x, float(given["calls"]))


@dataclass(frozen=True)
class Sensitive:
    """A fault, what it depends on, and from which size on it shows."""

    vary: str
    fault: Callable[[Tensor, dict[str, Any]], Tensor]
    size: int


SENSITIVE = (
    Sensitive("batch", by_batch, 4),
    Sensitive("order", by_place, 1),
    Sensitive("padding", by_padding, 1),
    Sensitive("chunk", by_chunk, 4),
    Sensitive("decode", by_step, 1),
    Sensitive("threads", by_threads, 1),
    Sensitive("repeat", by_run, 1),
)
IDS = torch.arange(45).reshape(5, 9) * 7 % 32


def build() -> tuple[nn.Module, tuple[Tensor]]:
    """For the command: a model that is sensitive to batches."""
    model = Exact()
    model.fault = by_batch
    return model, (IDS,)
