"""Programs as users write them: graph breaks, new shapes, several compiled parts, backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from tests.taps.inductor.conftest import run
from tests.taps.inductor.models import net

Golden = Callable[[bool], Path]


class Layer(nn.Module):
    """A layer whose forward dynamo cannot trace in one piece."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.first(x))
        if self.broken:
            torch._dynamo.graph_break()
        return torch.cos(self.second(x)) + x


class Stack(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(broken) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack(broken: bool = False) -> Stack:
    torch.manual_seed(0)
    return Stack(broken)


def as_it_is(model: Stack) -> Callable[[Tensor], Tensor]:
    return model


def compiled_whole(model: Stack) -> Callable[[Tensor], Tensor]:
    return torch.compile(model)


def compiled_by_layer(model: Stack) -> Callable[[Tensor], Tensor]:
    for layer in model.layers:
        layer.compile()
    return model


# How a program compiles, whether its graph breaks, and the sizes of its batches.
PROGRAMS: dict[str, tuple[Callable[[Stack], Callable[[Tensor], Tensor]], bool, tuple[int, ...]]] = {
    "compiles nothing, new shapes": (as_it_is, False, (2, 3, 5)),
    "compiles its model, which breaks": (compiled_whole, True, (2,)),
    "compiles each layer": (compiled_by_layer, False, (2,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_tapped_as_it_is(name: str, tmp_path: Path) -> None:
    compile_it, broken, sizes = PROGRAMS[name]

    def program(call: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            for size in sizes:
                call(torch.ones(size, 4) * 0.3)

    with dumpcmp.capture(None, tmp_path / "golden"):
        program(stack(broken))
    how = dumpcmp.Compiled(twin=len(sizes) == 1)
    with dumpcmp.capture(None, tmp_path / "target", mode=how):
        program(compile_it(stack(broken)))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    assert passed(outcome, "layers.1.second/linear", "output.0") == len(sizes)
    assert passed(outcome, "layers.1/add", "output.0") == len(sizes)


def test_a_compiled_module_can_be_named(golden: Golden, tmp_path: Path) -> None:
    model, x = net()
    compiled: Any = torch.compile(model)
    with dumpcmp.capture(compiled, tmp_path / "d", mode="compiled"), torch.no_grad():
        compiled(x)
    outcome = dumpcmp.compare(golden(False), tmp_path / "d")
    assert outcome.exit_code == 0 and passed(outcome, "head/linear", "output.0") == 1


def passed(outcome: Outcome, op: str, slot: str) -> int:
    rows = [row for row in outcome.rows if (row.key.op, row.key.slot) == (op, slot)]
    return sum(row.verdict is Verdict.PASS for row in rows)


def test_a_backend_taps_without_a_capture(golden: Golden, tmp_path: Path) -> None:
    model, x = net()
    with dumpcmp.compiled_backend(tmp_path / "d") as backend, torch.no_grad():
        torch.compile(model, backend=backend)(x)
    torch._dynamo.reset()
    outcome = dumpcmp.compare(golden(False), tmp_path / "d")
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    assert passed(outcome, "blocks.1.mlp/mul", "output.0") == 1


def twice(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend with a fault: what it gives is doubled."""
    return lambda *args: tuple(2 * value for value in graph.forward(*args))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_any_backend_is_seen_at_its_boundary(backend: str, golden: Golden, tmp_path: Path) -> None:
    model, x = net()
    with dumpcmp.capture(model, tmp_path / "d", mode=dumpcmp.Boundary(backend), backward=True):
        run(model, x, backward=True)
    outcome = dumpcmp.compare(golden(True), tmp_path / "d")
    assert outcome.exit_code == 0
    assert passed(outcome, "<root>/mul", "output.0") == 1
    assert passed(outcome, "<root>/mul", "grad_output.0") == 1
    assert any("graph-0 of" in row.judgement.reason for row in outcome.rows)


def test_a_wrong_backend_is_found_at_its_boundary(golden: Golden, tmp_path: Path) -> None:
    model, x = net()
    with dumpcmp.capture(model, tmp_path / "d", mode=dumpcmp.Boundary(twice)):
        run(model, x)
    found = dumpcmp.compare(golden(False), tmp_path / "d").first_divergence
    assert found is not None and found.key.op == "<root>/mul"


def test_an_unknown_backend_is_told_with_those_that_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(CaptureError, match="no_such") as told,
        dumpcmp.capture(None, tmp_path / "d", mode=dumpcmp.Boundary("no_such")),
    ):
        pass
    assert "aot_eager" in told.value.hint


def test_filters_act_on_compiled_runs(tmp_path: Path) -> None:
    model, x = net()
    with dumpcmp.capture(
        model, tmp_path / "d", mode="compiled", layers="blocks.0.mlp*", io="output"
    ):
        run(model, x)
    keys = [key for key in Archive(tmp_path / "d") if key.slot.kind not in ("param", "buffer")]
    assert keys and all(key.op.startswith("blocks.0.mlp") for key in keys)
    assert all(key.slot.startswith("output") for key in keys)
