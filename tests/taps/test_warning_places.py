"""Warnings name the same lines captured as uncaptured, and no more of them are heard."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.taps.modes.left_to_python import FINALIZERS, FUNCTIONS, SETTINGS, WARNINGS


class Of(nn.Module):
    """A model that runs a function."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.inner = run, nn.Sequential(nn.Linear(4, 4), nn.Softmax())

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def loss(self: Any, x: Tensor) -> Tensor:
    return F.mse_loss(x, torch.ones(4))


def softmax(self: Any, x: Tensor) -> Tensor:
    found: Tensor = self.inner(x)
    return F.softmax(found)


def cast(self: Any, x: Tensor) -> Tensor:
    return x.to(torch.complex64).to(torch.float32) + 1


def warn(level: int) -> None:
    warnings.warn("mine", stacklevel=level)


def own(self: Any, x: Tensor) -> Tensor:
    for level in range(1, 7):
        warn(level)
    return x + 1


def behind_a_break(self: Any, x: Tensor) -> Tensor:
    y = x + 1
    print("here")
    own(self, y)
    return F.mse_loss(y, torch.ones(4))


def heard(model: nn.Module) -> list[tuple[str, str, int]]:
    """The warnings of a call, without those of objects that Python happens to free meanwhile."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model(torch.ones(3, 4))
    finally:
        torch.set_warn_always(always)
    called = [one for one in said if not issubclass(one.category, ResourceWarning)]
    return [(str(one.message), one.filename, one.lineno) for one in called]


def leaving_garbage(self: Any, x: Tensor) -> Tensor:
    """What another test may have left behind is found by Python in the midst of this call."""
    cycle: list[Any] = [TemporaryFile()]  # noqa: SIM115 (nobody closes it)
    cycle.append(cycle)
    del cycle
    gc.collect()
    return loss(self, x)


@pytest.mark.parametrize("run", [loss, softmax, cast, own, behind_a_break, leaving_garbage])
@pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
def test_warnings_name_the_lines_of_the_program(
    mode: str, run: Callable[[Any, Tensor], Tensor], tmp_path: Path
) -> None:
    model = Of(run)
    before, uncaptured = warnings.warn, heard(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # fx says what it did not trace
        with dumpcmp.capture(model, tmp_path / "d", mode=mode):
            captured = heard(model)
            again = heard(model)
    assert captured == again == uncaptured != []
    assert warnings.warn is before


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Ending:
    ended = 0

    def __del__(self) -> None:
        Ending.ended += 1


def doubled(self: Any, x: Tensor) -> Tensor:
    found: Tensor = Doubling.apply(self.inner[0](x))  # type: ignore[no-untyped-call]
    return found


def ended(self: Any, x: Tensor) -> Tensor:
    last = Ending()
    del last
    return x + Ending.ended


def limited(self: Any, x: Tensor) -> Tensor:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100)
    sys.setrecursionlimit(before)
    return x + 1


LEFT = {FUNCTIONS: doubled, FINALIZERS: ended, SETTINGS: limited, WARNINGS: loss}


@pytest.mark.parametrize(("why", "run"), LEFT.items(), ids=[run.__name__ for run in LEFT.values()])
def test_what_would_show_is_not_traced_and_recorded_nevertheless(
    why: str, run: Callable[[Any, Tensor], Tensor], tmp_path: Path
) -> None:
    model, given = Of(run), torch.ones(3, 4)
    for mode in ("eager", "fx"):
        Ending.ended = 0
        with warnings.catch_warnings(), dumpcmp.capture(model, tmp_path / mode, mode=mode):
            warnings.simplefilter("ignore")
            result = model(given)
        assert Ending.ended == (run is ended)
        assert run is not doubled or type(result.grad_fn).__name__ == "DoublingBackward"
    assert why in dumpcmp.Archive(tmp_path / "fx").run[0]["run"]["not_traced"]
    assert set(dumpcmp.Archive(tmp_path / "eager")) == set(dumpcmp.Archive(tmp_path / "fx"))
