"""A compiled capture leaves dynamo's graphs and Inductor's kernels as the program has them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.programs import dump
from dumpcmp.taps.inductor import marks
from dumpcmp.taps.inductor.provenance import Provenance


def read_through_a_view(x: Tensor) -> Tensor:
    """What Inductor gets wrong: `y` is computed after the write to `x` (pytorch#198101)."""
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def numbers() -> Tensor:
    return torch.arange(-12, 12, dtype=torch.int64).reshape(4, 6)


def program() -> None:
    compiled: Callable[[Tensor], Tensor] = torch.compile(read_through_a_view)
    compiled(numbers())


def test_a_bug_of_inductor_is_there_under_capture_too_and_is_named(tmp_path: Path) -> None:
    torch._dynamo.reset()
    alone: Tensor = torch.compile(read_through_a_view)(numbers())
    assert not torch.equal(alone, read_through_a_view(numbers()))
    dump(program, tmp_path / "golden")
    target = dump(program, tmp_path / "target", mode="compiled", certify=True)
    assert target.certified, target.certificate
    given = {key.op.function for key in Archive(tmp_path / "target") if key.slot == "output.0"}
    assert given == {"view", "sub"}
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first is not None and first.key.op.function == "sub"


def test_a_capture_finds_the_configurations_that_the_program_chose() -> None:
    tuned = pkgutil.resolve_name("torch._inductor.runtime.autotune_cache:AutotuneCache")
    settings = pkgutil.resolve_name("torch.compiler.config")
    with settings.patch(cache_key_tag="mine"):
        alone = tuned._prepare_key("kernel.py")
        with Provenance(lambda: None, lambda run: run).watching():
            assert settings.cache_key_tag != "mine", "graphs are kept apart"
            assert tuned._prepare_key("kernel.py") == alone
    assert tuned._prepare_key("kernel.py") != alone


def test_a_capture_that_changes_a_kernel_is_not_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, sync = marks._TracedTensors.mark, pkgutil.resolve_name("torch:_sync")

    def mark_synced(self: Any, tensor: Tensor, given: Any) -> None:
        if isinstance(tensor, torch._subclasses.functional_tensor.FunctionalTensor):
            sync(tensor)  # which puts nodes of views into the graph earlier
        mark(self, tensor, given)

    monkeypatch.setattr(marks._TracedTensors, "mark", mark_synced)
    with config.patch(force_disable_caches=True):
        target = dump(program, tmp_path / "d", mode="compiled", certify=True)
    assert target.certified is False
    kernel = "kernel cpp_fused_fill_lift_fresh_mul_slice_sub_0 of graph 0 (inference)"
    assert f"{kernel} is not in the captured run, which has cpp_fused_mul_sub" in target.certificate


class Doubling(TorchFunctionMode):
    """A mode of the program's own, which dynamo must trace as it does uncaptured."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        return result * 2 if func is torch.sin else result


def of_all_kinds(x: Tensor) -> Tensor:
    y = 1 - x * 2
    y += torch.sin(x)
    torch._dynamo.graph_break()
    return y / 3 + torch.ones(3)


def traced() -> list[list[str]]:
    """The graphs of a function that is called with and without modes, as dynamo hands them over."""
    graphs: list[list[str]] = []

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append([f"{n.op} {n.target} {n.name}" for n in graph.graph.nodes])
        return graph.forward

    run = torch.compile(of_all_kinds, backend=keep)
    x = torch.arange(3.0)
    results = [run(x), run(x)]
    with Doubling():
        results += [run(x)]
    with torch.device("cpu"):
        results += [run(x)]
    assert torch.equal(results[0], results[1])
    return [*graphs, [str(result.tolist()) for result in results]]


def test_dynamo_traces_and_guards_as_if_no_mode_of_ours_were_there(tmp_path: Path) -> None:
    torch._dynamo.reset()
    plain = traced()
    torch._dynamo.reset()
    with dumpcmp.capture(None, tmp_path / "d", mode="compiled"):
        assert traced() == plain
