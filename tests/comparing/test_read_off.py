"""Numbers that programs read off tensors: they differ by rounding, and literals do not."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Outcome
from dumpcmp.faults import Fault, on_output, planted

Take = Callable[[Tensor], float]


class Dividing(nn.Module):
    """Divides by a number of its own making."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self.first, self.last, self.take = nn.Linear(16, 16), nn.Linear(16, 16), take

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z: Tensor = self.last(y / self.take(y.norm()))
        return z


def compared(room: Path, golden: Take, target: Take, fault: Fault | None = None) -> Outcome:
    """A float32 run that divides by one number, against a bfloat16 run that does by another."""
    for name, take, dtype in (("g", golden, torch.float32), ("t", target, torch.bfloat16)):
        torch.manual_seed(0)
        model, x = Dividing(take).to(dtype), torch.randn(64, 6, 16).to(dtype).requires_grad_()
        wrong = planted(model, fault) if fault and name == "t" else nullcontext()
        with wrong, dumpcmp.capture(model, room / name, backward=True):
            model(x).square().sum().backward()
    return dumpcmp.compare(room / "g", room / "t")


SAME: list[Take] = [lambda n: n.item(), lambda n: 2.5 * n.item(), lambda n: 3 / n.item()]


@pytest.mark.parametrize("take", SAME)
def test_a_number_off_a_tensor_rounds_as_the_tensor_does(take: Take, tmp_path: Path) -> None:
    outcome = compared(tmp_path, take, take)
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline


DIFFERENT: list[tuple[Take, Take]] = [
    (lambda n: 45.164, lambda n: 45.25),
    (lambda n: n.item(), lambda n: n.item() * 1.002),
    (lambda n: n.item(), lambda n: n.item() + 0.01),
    (lambda n: n.item(), lambda n: (n * 1.1).item()),
    (lambda n: n.item(), lambda n: 45.2),
]


@pytest.mark.parametrize("golden, target", DIFFERENT)
def test_another_number_is_another_program(golden: Take, target: Take, tmp_path: Path) -> None:
    outcome = compared(tmp_path, golden, target)
    assert outcome.headline.startswith("DIFFERENT PROGRAM at <root>/div"), outcome.headline


def test_a_wrong_tensor_is_found_where_it_was_computed(tmp_path: Path) -> None:
    def lengthen(norm: Tensor) -> None:
        norm.data.mul_(1.05)

    wrong = Fault("", "", "norm", on_output(lengthen))
    outcome = compared(tmp_path, lambda n: n.item(), lambda n: n.item(), wrong)
    assert outcome.headline.startswith("WRONG at <root>/norm"), outcome.headline
