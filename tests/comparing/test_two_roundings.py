"""A wide number beside a short tensor: kernels may round it first or not, and both are right."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.faults import Fault, planted


class Scaled(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0037))

    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, self.scale)


@pytest.mark.parametrize(
    ("scale", "is_right"),
    [
        (torch.tensor(1.0037), True),
        (torch.tensor(1.0037, dtype=torch.bfloat16), True),
        (torch.tensor(1.0237), False),
    ],
)
def test_either_is_right_and_another_is_not(scale: Tensor, is_right: bool, tmp_path: Path) -> None:
    def divide(_: object, args: tuple[Tensor, ...], __: object) -> Tensor:
        return (args[0].double() / scale.double()).to(args[0].dtype)

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(64, 64).bfloat16()
    with dumpcmp.capture(model, tmp_path / "g"):
        model(x)
    kernel = Fault("another kernel", "", "div", divide)
    with planted(model, kernel), dumpcmp.capture(model, tmp_path / "t"):
        model(x)
    outcome = dumpcmp.compare(tmp_path / "g", tmp_path / "t")
    assert outcome.passed is is_right, outcome.headline
