"""An op that one side left out is found where other choices were made, and excuses nothing else."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dumpcmp
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import long
from tests.comparing.test_decisions import SplitProducts

WIDTH, EXPERTS, TAKEN, TOKENS, BLOCKS = 16, 8, 2, 24, 2

Rescale = Callable[[Tensor], Tensor]


def over_sum(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def times_inverse(weights: Tensor) -> Tensor:
    return weights * (1 / weights.sum(-1, keepdim=True))


def not_at_all(weights: Tensor) -> Tensor:
    return weights


class Experts(nn.Module):
    """All experts take all tokens; gates say which of them count, and how much."""

    def __init__(self, rescale: Rescale) -> None:
        super().__init__()
        self.router, self.rescale = nn.Linear(WIDTH, EXPERTS, bias=False), rescale
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) * WIDTH**-0.5)
        self.chosen = torch.empty(0)

    def forward(self, rows: Tensor) -> Tensor:
        weights, self.chosen = torch.topk(F.softmax(self.router(rows), -1), TAKEN, -1)
        blank = torch.zeros(rows.shape[0], EXPERTS, dtype=rows.dtype)
        gates = blank.scatter(1, self.chosen, self.rescale(weights))
        made = F.gelu(rows @ self.up) @ self.down
        return (made * gates.t()[..., None]).sum(0)


class Block(nn.Module):
    """Attention to all tokens, and then experts."""

    def __init__(self, rescale: Rescale) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts = Experts(rescale)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.before(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value))
        made: Tensor = self.experts(self.between(x).reshape(-1, WIDTH))
        return x + made.view_as(x)


class Mixing(nn.Module):
    """Blocks, of which the last one rescales its gates in a way of its own."""

    def __init__(self, rescale: Rescale) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 12)
        ways = [over_sum] * (BLOCKS - 1) + [rescale]
        self.blocks = nn.ModuleList(Block(way) for way in ways)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.last(x)
        return found

    @property
    def chosen(self) -> Iterator[Tensor]:
        return (b.experts.chosen.sort(-1).values for b in self.blocks if isinstance(b, Block))


def run(seed: int, rescale: Rescale, noise: AbstractContextManager[Any], path: Path | None) -> Any:
    torch.manual_seed(seed)
    model = Mixing(rescale).bfloat16()
    x = torch.randn(1, TOKENS, WIDTH).bfloat16()
    with noise, torch.no_grad(), dumpcmp.capture(model, path) if path else nullcontext():
        model(x)
    return path or list(model.chosen)


@cache
def flipping(where: str) -> int:
    """The first seed with which tokens first go to other experts in the last block, or before."""
    for seed in range(100):
        sides = [run(seed, over_sum, noise, None) for noise in (nullcontext(), SplitProducts())]
        flips = [not torch.equal(one, other) for one, other in zip(*sides, strict=True)]
        if any(flips) and (flips.index(True) == BLOCKS - 1) is (where == "in the last block"):
            return seed
    raise AssertionError(f"no seed of 100 flips {where}")


WHERE = ["in the last block", "before it, in all rows"]
CASES = [
    (over_sum, over_sum, True),
    (over_sum, times_inverse, True),
    (times_inverse, over_sum, True),
    (over_sum, not_at_all, False),
    long(not_at_all, over_sum, False),
]


@pytest.mark.each_value_once
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("golden, target, is_sound", CASES)
def test_a_rescaling_that_one_side_left_out_is_no_other_choice(
    where: str, golden: Rescale, target: Rescale, is_sound: bool, tmp_path: Path
) -> None:
    seed = flipping(where)
    paths = (
        run(seed, golden, nullcontext(), tmp_path / "golden"),
        run(seed, target, SplitProducts(), tmp_path / "target"),
    )
    outcome = dumpcmp.compare(*paths)
    assert outcome.tally[Verdict.FLIP], "tokens go to other experts"
    if is_sound:
        assert outcome.conclusion is Conclusion.DECISIONS, outcome.headline
        return
    assert outcome.conclusion in (Conclusion.WRONG, Conclusion.PROGRAM), outcome.headline
    first = outcome.first_divergence
    assert first is not None and first.key.op == f"blocks.{BLOCKS - 1}.experts/sum"
