"""What a step writes into buffers is a result of it, though nothing of the run reads it again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.op_names import writes_in_place


class Keeping(nn.Module):
    """A layer that keeps a running mean and a cache."""

    mean: Tensor
    cache: Tensor

    def __init__(self, skips: str = "") -> None:
        super().__init__()
        self.layer, self.skips = nn.Linear(6, 6), skips
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("cache", torch.zeros(4, 8, 6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        with torch.no_grad():
            if self.skips != "mean":
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            if self.skips != "cache":
                self.cache[0] = y
            if self.skips != "scratch":
                y.detach().clone().mul_(2.0)
                x[0], self.cache[1]  # views that nobody needs
        return y


def kept(path: Path, mode: str, skips: str = "") -> Path:
    torch.manual_seed(0)
    model, x = Keeping(skips), torch.randn(8, 6)
    with dumpcmp.capture(model, path, mode=mode), torch.no_grad():
        model(x)
    return path


@pytest.mark.parametrize(
    ("mode", "skips", "op"),
    [
        ("eager", "mean", "mul"), ("eager", "cache", "setitem"),
        ("fx", "mean", "mul"), ("fx", "cache", "setitem"),
        ("aten", "mean", "aten.mul"), ("aten", "cache", "aten.select"),
    ],
)  # fmt: skip
def test_a_buffer_that_is_not_written_to_is_found(
    mode: str, skips: str, op: str, tmp_path: Path
) -> None:
    outcome = dumpcmp.compare(kept(tmp_path / "a", mode), kept(tmp_path / "b", mode, skips))
    assert not outcome.passed
    assert f"<root>/{op} (call 0" in outcome.headline


def test_what_nobody_keeps_does_not_matter(tmp_path: Path) -> None:
    golden = kept(tmp_path / "a", "eager")
    assert dumpcmp.compare(golden, kept(tmp_path / "b", "eager", "scratch")).passed


@pytest.mark.parametrize(
    ("target", "writes"),
    [
        ("torch.Tensor.add_", True),
        ("aten.index_put_.default", True),
        ("torch.Tensor.__setitem__", True),
        ("torch.Tensor.__iadd__", True),
        ("operator.iadd", True),
        ("operator.setitem", True),
        ("aten.__iand__.Tensor", True),
        ("aten._foreach_add_.List", True),
        ("mine.update_.default", True),
        ("operator.and_", False),
        ("torch.Tensor.__invert__", False),
        ("torch.Tensor.__add__", False),
        ("aten._to_copy.default", False),
        ("aten.add.Tensor", False),
    ],
)
def test_functions_that_write_in_place_are_known_by_their_names(target: str, writes: bool) -> None:
    assert writes_in_place(target) == writes
