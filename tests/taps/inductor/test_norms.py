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
from tests.taps.inductor.models import ATEN

Plant = Callable[[nn.Sequential], AbstractContextManager[Any]]
PLAIN: Plant = lambda _: nullcontext()  # noqa: E731


def pooled() -> nn.Sequential:
    """Convolutions with biases that norms take away, and a pool that gives equal numbers back."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(16, 16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def dumped(path: Path, mode: str | dumpcmp.Compiled, plant: Plant = PLAIN) -> Path:
    """One training step into an archive at `path`."""
    torch.manual_seed(0)
    model, x, labels = pooled(), torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8,))
    with plant(model), dumpcmp.capture(model, path, mode=mode, backward=True):
        F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("whole") / "golden", "eager")


@pytest.mark.long  # so it is without twins, which double the kernels
def test_what_cancels_before_a_norm_raises_no_alarm(whole: Path, tmp_path: Path) -> None:
    outcome = dumpcmp.compare(whole, dumped(tmp_path / "target", "compiled"))
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


FAULTS: dict[str, tuple[Plant, str]] = {  # and where the kernel gives out something
    "another eps": (compiled_with(eps_is_larger), "2/relu"),
    "sums of 1.001 times": (compiled_with(sums_are_larger), "0/conv2d"),
}


@pytest.mark.long
def test_a_fault_beside_a_norm_is_named(whole: Path, tmp_path: Path) -> None:
    target = dumped(tmp_path / "target", "compiled", a_weight_gradient_is_scaled)
    found = dumpcmp.compare(whole, target).first_divergence
    assert found is not None and found.key.op == "3/conv2d", found


@pytest.mark.long  # so it is in a net without norms, in test_faults
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_without_twins(name: str, whole: Path, tmp_path: Path) -> None:
    plant, op = FAULTS[name]
    target = dumped(tmp_path / "target", dumpcmp.Compiled(twin=False), plant)
    found = dumpcmp.compare(whole, target).first_divergence
    assert found is not None and found.key.op == op, found


def test_what_lies_between_the_stored_values_of_kernels_raises_no_alarm(
    whole: Path, tmp_path: Path
) -> None:
    """A norm and a mean in one kernel: each of the two sums rounds."""
    target = dumped(tmp_path / "target", dumpcmp.Compiled(twin=False))
    outcome = dumpcmp.compare(whole, target)
    assert outcome.exit_code == 0, outcome.failures
