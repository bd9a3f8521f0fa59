"""A run in float32 against the same in short dtypes: what each has of its own is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome

SHORT = [torch.bfloat16, torch.float16]


class Norm(nn.Module):
    """Casts to float32, which does nothing in float32."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.linspace(0.5, 1.5, 16)), factor

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * self.factor
        return self.weight * (wide * scale).to(x.dtype)


class Layer(nn.Module):
    """A residual layer around a norm, and attention under a mask of the least number."""

    def __init__(self, factor: float = 1.0, masked: float | None = None) -> None:
        super().__init__()
        self.embed, self.norm, self.masked = nn.Embedding(50, 16), Norm(factor), masked
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.inner(self.norm(x))
        least = torch.finfo(x.dtype).min if self.masked is None else self.masked
        above = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        mask = torch.zeros(above.shape, dtype=x.dtype).masked_fill(above, least)
        other = torch.where(above, least, torch.tensor(0.0, dtype=x.dtype))
        weights = torch.softmax(x @ x.transpose(-1, -2) + mask + other, -1)
        y: Tensor = self.head(weights @ x)
        return y


def compared(room: Path, dtype: torch.dtype, mode: str, backward: bool, wrong: Layer) -> Outcome:
    ids = torch.arange(24).view(3, 8)
    for name, model in ("golden", Layer()), ("mine", wrong):
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.7, 0.7)
        model = model.to(torch.float32 if name == "golden" else dtype)
        with dumpcmp.capture(model, room / name, mode=mode, backward=backward):
            loss: Tensor = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten() % 10)
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]
    return dumpcmp.compare(room / "golden", room / "mine")


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("mode, backward", [("eager", True), ("aten", False)])
def test_a_sound_run_is_the_same(
    dtype: torch.dtype, mode: str, backward: bool, tmp_path: Path
) -> None:
    outcome = compared(tmp_path, dtype, mode, backward, Layer())
    assert outcome.passed, outcome


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_another_number_in_the_mask_is_told(dtype: torch.dtype, tmp_path: Path) -> None:
    root = compared(tmp_path, dtype, "eager", True, Layer(masked=-3.0)).first_divergence
    # A mask of two numbers tells nothing by itself; the sum that takes it does.
    assert root is not None and root.key.op == "<root>/add" and root.key.call == 1, root
    assert root.reason == "golden computes something else at <root>/add#1"


def test_a_fault_in_the_norm_is_told(tmp_path: Path) -> None:
    wrong = Layer(factor=1.1)
    root = compared(tmp_path, torch.bfloat16, "eager", True, wrong).first_divergence
    assert root is not None and root.key.op.module == "norm", root
