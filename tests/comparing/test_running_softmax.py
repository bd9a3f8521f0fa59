"""Attention in blocks with a running maximum, as kernels do it, against attention at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp

LENGTH, BLOCK, LEAST = 6, 2, -1e30


class Attention(nn.Module):
    def __init__(self, fault: str | None = None) -> None:
        super().__init__()
        self.query, self.key, self.fault = nn.Linear(16, 16), nn.Linear(16, 16), fault

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query(x), self.key(x)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.fault is not None:
            return self.in_blocks(query, key, x, seen)
        out: Tensor = (query @ key.mT / 4).masked_fill(~seen, LEAST).softmax(-1) @ x
        return out

    def in_blocks(self, query: Tensor, key: Tensor, x: Tensor, seen: Tensor) -> Tensor:
        given, total = torch.zeros_like(x), torch.zeros(4, LENGTH, 1)
        largest = torch.full((4, LENGTH, 1), LEAST)
        for start in range(0, LENGTH, BLOCK):
            here = slice(start, start + BLOCK)
            scores = (query @ key[:, here].mT / 4).masked_fill(~seen[:, here], LEAST)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, kept = (scores - new).exp(), (largest - new).exp()
            total = (total if self.fault == "total" else total * kept) + weights.sum(-1, True)
            given = (given if self.fault == "sum" else given * kept) + weights @ x[:, here]
            largest = new
        return given / total


def dumped(path: Path, fault: str | None = None) -> Path:
    torch.manual_seed(0)
    model, x = Attention(fault), torch.randn(4, LENGTH, 16)
    with dumpcmp.capture(model, path), torch.no_grad():
        model(x)
    return path


@pytest.mark.parametrize(("fault", "passes"), [("", True), ("total", False), ("sum", False)])
def test_a_running_softmax_is_one_at_once(fault: str, passes: bool, tmp_path: Path) -> None:
    outcome = dumpcmp.compare(dumped(tmp_path / "golden"), dumped(tmp_path / "target", fault))
    assert outcome.passed == passes
