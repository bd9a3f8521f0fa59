"""Programs that compute the same in another form: one place does not make one value."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Outcome

Body = Callable[[Tensor], Tensor]


class Doing(nn.Module):
    """A linear layer, and what `body` makes of it."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(32, 32), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x))


def compared(room: Path, golden: Body, target: Body) -> Outcome:
    for name, body in (("golden", golden), ("target", target)):
        torch.manual_seed(0)
        model, x = Doing(body), torch.randn(2, 12, 32)
        with dumpcmp.capture(model, room / name), torch.no_grad():
            model(x)
    return dumpcmp.compare(room / "golden", room / "target")


def angles(y: Tensor) -> Tensor:
    speeds = 1.0 / (10000 ** (torch.arange(0, 32, 2) / 32))
    return torch.outer(torch.arange(y.shape[1]).float(), speeds)


def turned_as_complex(y: Tensor) -> Tensor:
    turns = torch.polar(torch.ones(12, 16), angles(y))
    return torch.view_as_real(torch.view_as_complex(y.reshape(2, 12, 16, 2)) * turns).flatten(2)


def turned(y: Tensor, times: float = 1.0, sign: int = 1) -> Tensor:
    even, odd, cos, sin = y[..., 0::2], y[..., 1::2], angles(y).cos() * times, angles(y).sin()
    return torch.stack([even * cos - odd * sin, sign * even * sin + odd * cos], -1).flatten(2)


def test_complex_arithmetic_may_be_done_in_real_parts(tmp_path: Path) -> None:
    outcome = compared(tmp_path, turned_as_complex, turned)
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline
    again = dumpcmp.compare(tmp_path / "target", tmp_path / "golden")
    assert again.conclusion is dumpcmp.Conclusion.SAME, again.headline


@pytest.mark.parametrize(
    "wrong", [lambda y: turned(y, times=1.00002), lambda y: turned(y, sign=-1), lambda y: y]
)
def test_what_is_wrong_in_real_parts_is_found(wrong: Body, tmp_path: Path) -> None:
    outcome = compared(tmp_path, turned_as_complex, wrong)
    assert outcome.conclusion is dumpcmp.Conclusion.WRONG, outcome.headline


def test_the_real_part_is_not_the_whole(tmp_path: Path) -> None:
    outcome = compared(tmp_path, torch.fft.fft, lambda y: torch.fft.fft(y).real)
    assert outcome.conclusion is dumpcmp.Conclusion.WRONG, outcome.headline
