"""Gradients that are added up over microbatches: held against those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import dumpcmp
from dumpcmp.nouns.outcome import Outcome

Going = Callable[[list[Tensor]], None]  # back from the losses of all microbatches


@dataclass(frozen=True)
class Training:
    """How a small net is trained on batches in `num` shares."""

    num: int = 1
    divisor: float = 1.0  # of each share's loss
    steps: int = 1
    reduction: str = "mean"
    lr: float = 0.1
    back: Going | None = None  # after all microbatches; None: inside of each


def in_order(losses: list[Tensor]) -> None:
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]


def rewinding(losses: list[Tensor]) -> None:
    in_order(losses[::-1])


def at_once(losses: list[Tensor]) -> None:
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]


def train(path: Path, how: Training) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=how.lr)
    with dumpcmp.capture(model, path, backward=True):
        for _ in range(how.steps):
            shares = zip(*(torch.randn(8, n).chunk(how.num) for n in (8, 3)), strict=True)
            losses = []
            for n, (share, wanted) in enumerate(shares):
                with dumpcmp.microbatch(n, of=how.num) if how.num > 1 else nullcontext():
                    loss = functional.mse_loss(model(share), wanted, reduction=how.reduction)
                    losses.append(loss / how.divisor)
                    if how.back is None:
                        losses.pop().backward()  # type: ignore[no-untyped-call]
            (how.back or in_order)(losses)
            optimizer.step()
            optimizer.zero_grad()


def compared(folder: Path, golden: Training, target: Training) -> Outcome:
    train(folder / "golden", golden)
    train(folder / "target", target)
    return dumpcmp.compare(folder / "golden", folder / "target")


@pytest.mark.each_value_once
@pytest.mark.parametrize("back", [None, in_order, rewinding, at_once])
@pytest.mark.parametrize("steps", [1, 2])
def test_mean_losses_are_divided_by_the_number_of_microbatches(
    tmp_path: Path, back: Going | None, steps: int
) -> None:
    whole = Training(steps=steps)
    assert compared(tmp_path / "right", whole, Training(4, 4.0, steps, back=back)).passed
    outcome = compared(tmp_path / "wrong", whole, Training(4, 1.0, steps, back=back))
    root = outcome.first_divergence
    assert outcome.exit_code == 1 and root is not None
    assert str(root.key) == "Sequential[0] 2/linear#0 grad_output.0"  # what the losses hand back
    assert root.reason.startswith("golden has no such numbers")
    assert _apart(outcome) == pytest.approx(3)


def _apart(outcome: Outcome) -> float:
    """How far the gradient of the last weight is from golden's."""
    (row,) = (r for r in outcome.rows if str(r.key) == "Sequential[0] 2#0 grad.weight")
    assert row.verdict.fails and row.metrics is not None
    return row.metrics.rel_l2


def test_golden_may_be_the_run_that_divides_nothing(tmp_path: Path) -> None:
    assert compared(tmp_path / "right", Training(4, 4.0), Training()).passed
    outcome = compared(tmp_path / "wrong", Training(4, 1.0), Training())
    root = outcome.first_divergence
    assert outcome.exit_code == 1 and root is not None
    assert str(root.key) == "Sequential[0] 2/linear#0 grad_output.0"
    assert _apart(outcome) == pytest.approx(0.75)
    assert any("1/4 times golden" in row.reason for row in outcome.rows)


def test_sums_need_no_division(tmp_path: Path) -> None:
    summed = Training(reduction="sum", steps=2, lr=0.01)
    assert compared(tmp_path, summed, Training(4, 1.0, 2, "sum", 0.01)).passed


def test_an_optimizer_is_held_against_the_last_sum(tmp_path: Path) -> None:
    outcome = compared(tmp_path, Training(steps=2), Training(4, 4.0, 2, lr=0.05))
    root = outcome.first_divergence
    assert outcome.exit_code == 1 and root is not None
    assert root.key.op == "<effects>/training" and "['lr'] is 0.1 in golden" in root.reason
    said = [row.reason for row in outcome.rows if row.key.slot.kind == "param"]
    assert any("golden's optimizer makes of the same gradients" in one for one in said)


class Telling(torch.nn.Module):
    """A layer that returns a number, too."""

    def __init__(self, number: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.layer, self.number = torch.nn.Linear(4, 4), number

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.layer(x), self.number(x)


def told(path: Path, number: Callable[[Tensor], int], num: int) -> Path:
    torch.manual_seed(0)
    model, data = Telling(number), torch.randn(8, 4)
    with dumpcmp.capture(model, path), torch.no_grad():
        for n, share in enumerate(data.chunk(num)):
            with dumpcmp.microbatch(n, of=num) if num > 1 else nullcontext():
                model(share)
    return path


def test_what_microbatches_return_belongs_to_their_step(tmp_path: Path) -> None:
    def always(_: Tensor) -> int:
        return 7

    golden = told(tmp_path / "g", always, 1)
    assert dumpcmp.compare(golden, told(tmp_path / "s", always, 2)).passed
    whole, parts = told(tmp_path / "w", len, 1), told(tmp_path / "p", len, 2)
    outcome = dumpcmp.compare(whole, parts)
    assert outcome.exit_code == 2
    assert "a microbatch may return what belongs to its own share" in outcome.word
    assert dumpcmp.compare(parts, told(tmp_path / "q", len, 2)).passed
    wrong = dumpcmp.compare(parts, told(tmp_path / "r", lambda x: len(x) + 1, 2))
    assert wrong.exit_code == 1 and "result[1] is 4 in golden, 5 in mine" in wrong.word
