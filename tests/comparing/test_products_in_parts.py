"""A product as the sum of products of parts: one value of golden is one value of the target."""

from collections import defaultdict
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import dumpcmp
from dumpcmp import Outcome
from dumpcmp.comparing.side import open_side
from dumpcmp.nouns.selection import Tap

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
WIDTH = 24


class Multiplying(nn.Module):
    """A product between two layers, in a module of its own or beside them."""

    def __init__(self, product: Product, is_module: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.middle, self.is_module = Middle(product), is_module

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        middle = self.middle
        z = middle(y) if self.is_module else middle.product(y, middle.weight, middle.bias)
        found: Tensor = self.last(torch.relu(z))
        return found


class Middle(nn.Module):
    def __init__(self, product: Product) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 5)
        self.bias, self.product = nn.Parameter(torch.randn(WIDTH)), product

    def forward(self, y: Tensor) -> Tensor:
        return self.product(y, self.weight, self.bias)


def in_parts(cuts: tuple[int, ...], biased: int, left_out: int = 0) -> Product:
    """The sum over parts of the dim that is summed; part `biased` adds the bias."""

    def product(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ends = [0, *cuts, WIDTH]
        parts = [
            F.linear(
                y[..., a + left_out * (n > 0) : b],
                weight[:, a + left_out * (n > 0) : b],
                bias if n == biased else None,
            )
            for n, (a, b) in enumerate(pairwise(ends))
        ]
        return reduce(torch.add, parts)

    return product


def run_both(room: Path, target: Product, is_module: bool, is_trained: bool = False) -> None:
    for name, product in (("golden", F.linear), ("target", target)):
        torch.manual_seed(0)
        model, x = Multiplying(product, is_module), torch.randn(2, 6, WIDTH)
        with dumpcmp.capture(model, room / name, backward=is_trained):
            y = model(x)
            if is_trained:
                y.square().sum().backward()


def both_ways(room: Path) -> list[Outcome]:
    paths = room / "golden", room / "target"
    return [dumpcmp.compare(*paths), dumpcmp.compare(*reversed(paths))]


def matched_twice(outcome: Outcome, golden: Path, target: Path) -> list[str]:
    """Golden's values that are beside values of the target with other bytes."""
    ours, theirs = (open_side(path, Tap()).listing for path in (golden, target))
    beside = defaultdict(set)
    for row in outcome.rows:
        if row.golden_key and row.target_key:
            digest = theirs.record(row.target_key).digest
            beside[ours.first(row.golden_key)].add(digest)
    return [str(key) for key, digests in beside.items() if len(digests) > 1]


@given(st.sets(st.integers(1, WIDTH - 1), min_size=1, max_size=3), st.integers(0, 3), st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_sum_over_parts_is_the_product_and_one_value(
    cuts: set[int], biased: int, is_module: bool
) -> None:
    with TemporaryDirectory() as folder:
        room = Path(folder)
        run_both(room, in_parts(tuple(sorted(cuts)), min(biased, len(cuts))), is_module)
        paths = room / "golden", room / "target"
        for golden, target in (paths, paths[::-1]):
            outcome = dumpcmp.compare(golden, target)
            assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline
            assert matched_twice(outcome, golden, target) == []


@pytest.mark.parametrize("is_module", [False, True])
def test_gradients_of_a_sum_over_parts_are_those_of_the_product(
    is_module: bool, tmp_path: Path
) -> None:
    run_both(tmp_path, in_parts((10,), 1), is_module, is_trained=True)
    for outcome in both_ways(tmp_path):
        assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline


@pytest.mark.parametrize("is_module", [False, True])
@pytest.mark.parametrize("wrong", [in_parts((10,), biased=2), in_parts((10,), 1, left_out=1)])
def test_a_wrong_sum_over_parts_is_found(wrong: Product, is_module: bool, tmp_path: Path) -> None:
    run_both(tmp_path, wrong, is_module)
    for outcome in both_ways(tmp_path):
        assert outcome.exit_code == 1, outcome.headline
