"""Values that lie in memory otherwise than golden's: kernels for them round otherwise."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Outcome
from dumpcmp.faults import Fault, Tamper, on_output, planted
from dumpcmp.replay.lying import laid_as


def compared(room: Path, fault: Tamper | None = None) -> Outcome:
    """A batch norm of channels that lie first, against one of channels that lie last."""
    torch.manual_seed(3)
    x, grad = torch.randn(2, 24, 2, 32, 32).unbind()
    for name, layout in (("golden", torch.contiguous_format), ("target", torch.channels_last)):
        model = nn.BatchNorm2d(2)
        laid = x.contiguous(memory_format=layout).requires_grad_()
        wrong = fault and name == "target" and planted(model, Fault("", "", "batch_norm", fault))
        with wrong or nullcontext(), dumpcmp.capture(model, room / name, backward=True):
            model(laid).backward(grad.contiguous(memory_format=layout))
    return dumpcmp.compare(room / "golden", room / "target")


def test_moments_of_channels_that_lie_last_may_round_as_their_kernel_does(tmp_path: Path) -> None:
    outcome = compared(tmp_path)
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline


def with_another_eps(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs | {"eps": 2 * kwargs["eps"]})


def scale(y: Tensor) -> None:
    y.mul_(1.00001)


def scale_a_row(y: Tensor) -> None:
    y[0, 0, 0].mul_(1.001)


def shift_a_channel(y: Tensor) -> None:
    y[:, 1].add_(1e-5)


FAULTS = [with_another_eps, *map(on_output, (scale, scale_a_row, shift_a_channel))]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_them_is_found(fault: Tamper, tmp_path: Path) -> None:
    outcome = compared(tmp_path, fault)
    assert outcome.headline.startswith("WRONG at <root>/batch_norm")


def test_laying_a_tensor_as_it_lay_changes_no_element() -> None:
    x = torch.randn(2, 3, 4, 5)
    for lying in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(0, 1).clone()):
        laid = laid_as(lying.contiguous(), lying.stride())
        assert laid.stride() == lying.stride() and torch.equal(laid, lying)
    assert laid_as(x, ()) is x


def test_small_values_of_channels_that_lie_last_are_run_again_together(tmp_path: Path) -> None:
    """What torch stacks of them lies as they do, and is no matrix without a copy."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3))]
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 6, 9, 9)
    for name, layout in (("golden", torch.contiguous_format), ("target", torch.channels_last)):
        laid = x.contiguous(memory_format=layout).requires_grad_()
        with dumpcmp.capture(model, tmp_path / name, mode="aten", backward=True):
            model(laid).square().sum().backward()
        model.zero_grad()
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target", replay="all")
    assert outcome.exit_code == 0, outcome.headline
    assert not outcome.failures
