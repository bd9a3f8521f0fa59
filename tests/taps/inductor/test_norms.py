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

IMAGES, ROWS = (8, 3, 16, 16), (16, 12)


def pooled(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Convolutions with biases that norms take away, and a pool that gives equal numbers back."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), norm(16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def dense() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU()),
        *(nn.Linear(32, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 5)),
    )


NETS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "batch": (lambda: pooled(nn.BatchNorm2d), IMAGES),
    "group": (lambda: pooled(lambda width: nn.GroupNorm(width, width)), IMAGES),
    "rows": (dense, ROWS),
}


def dumped(path: Path, net: str, mode: str, plant: Plant = lambda _: nullcontext()) -> Path:
    """One training step of a net into an archive at `path`."""
    torch.manual_seed(0)
    make, shape = NETS[net]
    model, x, labels = make(), torch.randn(shape), torch.randint(0, 5, shape[:1])
    with plant(model), dumpcmp.capture(model, path, mode=mode, backward=True):
        F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    return path


def compared(tmp_path: Path, net: str, plant: Plant) -> Outcome:
    golden = dumped(tmp_path / "golden", net, "eager")
    return dumpcmp.compare(golden, dumped(tmp_path / "target", net, "compiled", plant))


@pytest.mark.parametrize("net", NETS)
def test_what_cancels_before_a_norm_raises_no_alarm(net: str, tmp_path: Path) -> None:
    outcome = compared(tmp_path, net, lambda _: nullcontext())
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
    "sums of 1.001 times": (compiled_with(sums_are_larger), "4/batch_norm"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_beside_a_norm_is_found(name: str, tmp_path: Path) -> None:
    plant, op = FAULTS[name]
    found = compared(tmp_path, "batch", plant).first_divergence
    assert found is not None and found.key.op == op, found
