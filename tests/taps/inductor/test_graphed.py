"""CUDA graphs of Inductor's own: what they gave goes on, and what is inside comes from beside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.taps.inductor import generated
from dumpcmp.taps.inductor.graphed import copy_of, have_same_bits
from tests.taps.inductor.conftest import run
from tests.taps.inductor.models import Net, net

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Code = Callable[[list[Any]], Any]


@pytest.fixture
def as_if_graphed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Have generated code run as a graph of Inductor's does, made by what is given."""

    def become(cudagraphify: Callable[..., Any]) -> None:
        def watching(graph: Any, call: Code) -> Any:
            return generated.graphed(cudagraphify, partial(generated._watched, graph, call))

        monkeypatch.setattr(generated.TappedGraph, "watching", watching)

    return become


def replaying(code: Code, **_: Any) -> Code:
    """A graph that computes anew what it is given."""
    return lambda args: code(args)


def stale(code: Code, **_: Any) -> Code:
    """A graph that forgets to take its inputs over: each replay gives what the first one gave."""
    kept: list[Any] = []

    def graph(args: list[Any]) -> Any:
        kept.append(code(args))
        return kept[0]

    return graph


def dumped(path: Path, steps: int = 1, backward: bool = False) -> list[Tensor]:
    model, x = net()
    with dumpcmp.capture(model, path, mode="compiled", backward=backward):
        return [run(model, x + step, backward) for step in range(steps)]


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_graph_computes_is_recorded_beside_it(
    as_if_graphed: Any, golden: Any, backward: bool, tmp_path: Path
) -> None:
    as_if_graphed(replaying)
    dumped(tmp_path / "d", backward=backward)
    facts = Archive(tmp_path / "d").run[0]["run"]
    assert facts["witnessed_graphs"] == {"same": 1 + backward, "other": 0, "off": 0}
    assert facts["twins"]["same"] > 0 and facts["twins"]["other"] == 0
    outcome = dumpcmp.compare(golden(backward), tmp_path / "d")
    assert outcome.passed, [row for row in outcome.rows if row.verdict.fails]


def test_a_graph_that_gives_other_bits_is_told_and_never_the_same(
    as_if_graphed: Any, tmp_path: Path
) -> None:
    model, x = net()
    with dumpcmp.capture(model, tmp_path / "golden"):
        for step in range(2):
            run(model, x + step)
    as_if_graphed(stale)
    with pytest.warns(CaptureWarning, match="1 of 2 runs of Inductor's CUDA graphs gave other"):
        first, second = dumped(tmp_path / "mine", steps=2)
    assert torch.equal(first, second), "the program goes on with what the graph gave"
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.exit_code == 1 and outcome.first_divergence is not None
    assert outcome.first_divergence.key.step == 1


TENSORS = {
    "dense": torch.arange(6.0).reshape(2, 3),
    "with gaps": torch.arange(24.0).reshape(4, 6)[::2, 1::2],
    "expanded": torch.arange(3.0).expand(2, 3),
    "transposed": torch.arange(6.0).reshape(3, 2).t(),
    "a number": torch.tensor(5.0),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_copies_lie_as_what_they_copy(name: str) -> None:
    tensor = TENSORS[name]
    copy = copy_of(tensor)
    assert (copy.stride(), copy.shape) == (tensor.stride(), tensor.shape)
    assert have_same_bits(copy, tensor)
    assert not tensor.numel() or copy.data_ptr() != tensor.data_ptr()


def test_bits_are_told_apart() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert have_same_bits(nan, nan.clone()) and not have_same_bits(nan, nan * -1)
    assert not have_same_bits(nan, nan.double()) and not have_same_bits(nan, nan[:1])
    assert have_same_bits(None, None) and have_same_bits(3, 3) and not have_same_bits(3, 4)


def trained(model: Net, inputs: list[Tensor], backward: bool) -> list[Tensor]:
    """What a model compiled for little overhead gives of each input, and the last gradients."""
    torch.compiler.reset()
    torch.cuda.manual_seed_all(3)
    compiled, given = torch.compile(model, mode="reduce-overhead"), []
    for x in inputs:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        model.zero_grad()
        given.append(run(compiled, x, backward).detach().clone())
    return given + [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("backward", [False, True])
def test_graphs_of_inductor_stay_on(backward: bool, tmp_path: Path) -> None:
    model, x = net()
    model, inputs = model.cuda(), [x.cuda() + step for step in range(5)]
    with dumpcmp.capture(model, tmp_path / "golden", backward=backward):
        for each in inputs:
            model.zero_grad()
            run(model, each, backward)
    bare = trained(model, inputs, backward)
    mode = {"mode": "compiled", "backward": backward}
    with dumpcmp.capture(model, tmp_path / "mine", **mode):  # type: ignore[arg-type]
        seen = trained(model, inputs, backward)
    assert all(map(torch.equal, bare, seen)), "a captured run gives the same bits"
    facts = Archive(tmp_path / "mine").run[0]["run"]
    assert facts["replays"] >= 3 * (1 + backward) and facts["unseen_replays"] == 0
    assert facts["witnessed_graphs"] == {"same": 5 * (1 + backward), "other": 0, "off": 0}
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.passed, [row for row in outcome.rows if row.verdict.fails]
    assert {row.key.step for row in outcome.rows} == set(range(5))


class Cached(torch.nn.Module):
    """Writes to a buffer of its own and draws random numbers."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(64, 64)
        self.register_buffer("cache", torch.zeros(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.mul_(0.5).add_(self.lift(x))
        return torch.nn.functional.dropout(self.cache.sin(), 0.25) @ self.lift.weight


@pytest.mark.gpu
@on_gpu
def test_graphs_that_write_and_draw_are_undisturbed(tmp_path: Path) -> None:
    inputs = [torch.randn(8, 64, device="cuda") for _ in range(5)]
    runs = []
    for path in (None, tmp_path / "d"):
        torch.manual_seed(0)
        model = Cached().cuda()
        if path is None:
            runs.append(trained(model, inputs, False))  # type: ignore[arg-type]
            continue
        with dumpcmp.capture(model, path, mode="compiled"):
            runs.append(trained(model, inputs, False))  # type: ignore[arg-type]
    assert all(map(torch.equal, *runs))
    assert Archive(tmp_path / "d").run[0]["run"]["witnessed_graphs"]["other"] == 0
