"""Norms that train, compiled: what cancels before them is rounding, and what is wrong is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from tests.taps.inductor.models import ATEN

Plant = Callable[[nn.Sequential], AbstractContextManager[Any]]


def pooled() -> nn.Sequential:
    """Convolutions with biases that norms take away, and a pool that gives equal numbers back."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(16, 16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def dumped(path: Path, mode: str, plant: Plant = lambda _: nullcontext()) -> Path:
    """One training step into an archive at `path`."""
    torch.manual_seed(0)
    model, x, labels = pooled(), torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8,))
    with plant(model), dumpcmp.capture(model, path, mode=mode, backward=True):
        F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    return path


def compared(tmp_path: Path, plant: Plant) -> Outcome:
    golden = dumped(tmp_path / "golden", "eager")
    return dumpcmp.compare(golden, dumped(tmp_path / "target", "compiled", plant))


def test_what_cancels_before_a_norm_raises_no_alarm(tmp_path: Path) -> None:
    outcome = compared(tmp_path, lambda _: nullcontext())
    assert outcome.exit_code == 0, outcome.failures


@contextmanager
def a_weight_gradient_is_scaled(model: nn.Sequential) -> Iterator[None]:
    weight = model.get_parameter("3.weight")
    weight.register_hook(lambda grad: grad * 1.001)  # type: ignore[no-untyped-call]
    yield


def eps_is_larger(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=ATEN.add.Tensor):
        if node.args[1] == 1e-5:
            node.args = (node.args[0], 1e-4)


def sums_are_larger(graph: fx.Graph) -> None:
    """Those of a batch norm's backward: what they are divided by is a fraction larger."""
    for node in graph.find_nodes(op="call_function", target=ATEN.mul.Tensor):
        if node.args[1] == 1 / 2048:
            node.args = (node.args[0], 1.001 / 2048)


def compiled_with(change: Callable[[fx.Graph], None]) -> Plant:
    from torch._inductor import config

    return lambda _: config.patch(post_grad_custom_pre_pass=change)


FAULTS: dict[str, tuple[Plant, str]] = {
    "a gradient of 1.001 times": (a_weight_gradient_is_scaled, "3/conv2d"),
    "another eps": (compiled_with(eps_is_larger), "1/batch_norm"),
    "sums of 1.001 times": (compiled_with(sums_are_larger), "1/batch_norm"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_beside_a_norm_is_found(name: str, tmp_path: Path) -> None:
    plant, op = FAULTS[name]
    found = compared(tmp_path, plant).first_divergence
    assert found is not None and found.key.op == op, found
