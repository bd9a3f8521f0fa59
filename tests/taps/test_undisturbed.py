"""What a capture must leave as it was, wherever and however the program runs."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

import dumpcmp
from dumpcmp import Archive, demo
from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.selection import make_tap
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step
from tests.taps.memory import MemorySink

MODES = ["eager", "fx", "aten"]


def state_of_torch() -> dict[str, Any]:
    """Everything that a capture could have left behind in torch."""
    hooks = [name for name in vars(nn_module) if name.startswith("_global_") and "hooks" in name]
    return {
        "door": nn.Module.__dict__["_compiled_call_impl"],
        "call": nn.Module.__call__,
        "compile": torch.compile,
        "functions": torch._C._len_torch_function_stack(),
        "dispatch": torch._C._len_torch_dispatch_stack(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        **{name: len(getattr(nn_module, name)) for name in hooks},
    }


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        y: Tensor = self.inner(x)
        if fail:
            raise KeyError("mine")
        return y * 2


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fail", [False, True], ids=["ends", "raises"])
def test_nothing_is_left_behind(mode: str, fail: bool, tmp_path: Path) -> None:
    before, model, x = state_of_torch(), Fragile(), torch.ones(2, 3)
    caught: BaseException | None = None
    try:
        with dumpcmp.capture(model, tmp_path / "d1", mode=mode, backward=True):
            held = model(x, fail=fail)
    except KeyError as error:
        caught = error
    assert (caught is not None) == fail
    assert state_of_torch() == before
    assert all(p._post_accumulate_grad_hooks in (None, {}) for p in model.parameters())
    if not fail:
        assert not held._backward_hooks
        held.sum().backward()
    archive = Archive(tmp_path / "d1")
    assert any(key.op == "inner.0/linear" for key in archive) or mode == "aten"
    assert archive.complete != fail
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_inference_mode_and_its_rewritten_tensors(mode: str, tmp_path: Path) -> None:
    """Inference tensors have no version: what was overwritten in place is no repetition."""

    class Rewriter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            y.mul_(2)
            return y - 1

    with torch.inference_mode():
        x = torch.arange(4.0)
        with dumpcmp.capture(None, tmp_path / "d1", mode=mode):
            assert torch.equal(Rewriter()(x), (x + 1) * 2 - 1)
    archive, name = Archive(tmp_path / "d1"), "aten." if mode == "aten" else ""
    after = archive.load(archive[Key("Rewriter", 0, f"<root>/{name}mul", 0, "output.0")])
    into = archive.load(archive[Key("Rewriter", 0, f"<root>/{name}sub", 0, "input.0")])
    assert np.array_equal(after.numbers(), into.numbers())
    assert np.array_equal(after.numbers(), (np.arange(4.0) + 1) * 2)


def test_autocast_is_recorded_with_the_call(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(torch.ones(2, 4))
        with dumpcmp.capture(model, tmp_path / "d1"):
            assert torch.equal(model(torch.ones(2, 4)), plain)
    archive = Archive(tmp_path / "d1")
    output = Key("Linear", 0, "<root>/linear", 0, "output.0")
    assert '"autocast":{"cpu":"bfloat16"}' in archive.calls[output.site].arguments
    assert archive[output].dtype == "bfloat16"


def test_threads_do_not_mix(tmp_path: Path) -> None:
    models = [nn.Sequential(*(nn.Linear(4, 4) for _ in range(n))) for n in (1, 2, 3)]
    inputs = [torch.full((2, 4), float(i)) for i in range(3)]
    wanted = [model(x).detach().clone() for model, x in zip(models, inputs, strict=True)]
    barrier = threading.Barrier(3)

    def run(i: int) -> None:
        barrier.wait()
        for _ in range(10):
            models[i](inputs[i])

    with dumpcmp.capture(None, tmp_path / "d1"):
        threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    archive = Archive(tmp_path / "d1")
    assert set(archive.models) == {"Sequential", "Sequential-1", "Sequential-2"}
    found = []
    for model in archive.models:
        assert archive.steps(model) == tuple(range(10))
        num_layers = len({k.op for k in archive.keys_of(model, 5) if "/" in k.op})
        key = Key(model, 5, "<root>", 0, "output.0")
        found.append((num_layers, archive.load(archive[key]).numbers().tolist()))
    assert sorted(n for n, _ in found) == [1, 2, 3]
    for num_layers, numbers in found:
        assert numbers == wanted[num_layers - 1].tolist()


def test_no_step_is_lost_while_another_thread_compiles(tmp_path: Path) -> None:
    """In fx mode, with shapes that are compiled for as they come."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))

    def run() -> None:
        for number in range(12):
            model(torch.ones(1 + number % 4, 4))

    with dumpcmp.capture(None, tmp_path / "d1", mode="fx"):
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    archive = Archive(tmp_path / "d1")
    assert archive.steps("Sequential") == tuple(range(48))
    keys = [list(archive.keys_of("Sequential", step)) for step in range(48)]
    assert {sum(not key.slot.is_weight for key in each) for each in keys} == {2 + 8 * 4}
    assert sum(key.slot.is_weight for each in keys for key in each) == 2 * 8  # once a run


@pytest.mark.parametrize("mode", ["eager", "fx", dumpcmp.Boundary("eager")], ids=str)
def test_models_do_not_outlive_their_program(mode: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    alive = weakref.ref(model)
    with dumpcmp.capture(None, tmp_path / "d1", mode=mode):
        model(torch.ones(2, 3))
    del model
    gc.collect()
    assert alive() is None


STEPPING: dict[str, dict[str, Any]] = {
    "functions": {},
    "modules": {"level": "modules"},
    "gradients": {"backward": True},
    "aten": {"mode": "aten"},
    "fx": {"mode": "fx"},
}


@pytest.mark.parametrize("options", STEPPING.values(), ids=STEPPING)
def test_steps_need_no_search_for_garbage(options: dict[str, Any], tmp_path: Path) -> None:
    model, living = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), []
    gc.collect()
    gc.freeze()  # so that few objects are looked at
    gc.disable()
    try:
        with dumpcmp.capture(model, tmp_path / "d1", **options):
            for _ in range(6):
                model(torch.ones(2, 3)).sum().backward()
                living.append(sum(type(each) is Step for each in gc.get_objects()))
    finally:
        gc.enable()
    assert max(living[2:]) <= living[1], living


@pytest.mark.filterwarnings("ignore::dumpcmp.nouns.errors.CaptureWarning")
def test_one_capture_at_a_time(tmp_path: Path) -> None:
    with (
        dumpcmp.capture(model := nn.Linear(1, 1), tmp_path / "d1"),
        pytest.raises(CaptureError, match="another capture is running"),
        dumpcmp.capture(model, tmp_path / "d2"),
    ):
        pass
    model(torch.ones(1))


@pytest.mark.filterwarnings("ignore::dumpcmp.nouns.errors.CaptureWarning")
def test_only_the_given_model_is_captured(tmp_path: Path) -> None:
    outer = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with dumpcmp.capture(outer[0], tmp_path / "d1"):
        outer(torch.ones(1, 2))
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert Archive(tmp_path / "d1").models == ("Linear",)
    assert Archive(tmp_path / "d1").steps("Linear") == (0,)


def test_compiled_programs_run_eagerly_under_an_eager_capture(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.GELU()), torch.ones(2, 3)
    compiled = torch.compile(model, backend="aot_eager")
    with dumpcmp.capture(None, tmp_path / "d1"):
        compiled(x)
        torch.compile(lambda y: model(y), backend="aot_eager")(x)
    archive = Archive(tmp_path / "d1")
    assert archive.models == ("<lambda>", "Sequential")
    assert not list(archive.keys_of("<lambda>", 0))  # it computes nothing but by its module
    for step in (0, 1):
        ops = {k.op for k in archive.keys_of("Sequential", step)}
        assert ops == {"<root>", "0", "0/linear", "1", "1/gelu"}


def test_compiled_modules_are_traced_for_an_fx_capture(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.GELU()), torch.ones(2, 3)
    with dumpcmp.capture(None, tmp_path / "d1", mode="fx"):
        torch.compile(model, backend="aot_eager")(x)
    archive = Archive(tmp_path / "d1")
    assert archive.models == ("Sequential",)
    assert {k.op for k in archive} == {"<root>", "0", "0/linear", "1/gelu"}
    assert {k.slot for k in archive if k.op == "0"} == {"param.weight", "param.bias"}


def test_a_program_may_reset_dynamo(tmp_path: Path) -> None:
    from torch._dynamo.callback import callback_handler

    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    with dumpcmp.capture(model, tmp_path / "d", mode="fx"):
        model(x)
        torch.compiler.reset()
        assert callback_handler.start_callbacks, "signals are held back while it traces anew"
        model(x)
    assert not callback_handler.start_callbacks
    assert Archive(tmp_path / "d").steps("Linear") == (0, 1)


def test_programs_that_compile_under_a_capture(tmp_path: Path) -> None:
    """In a fresh process, where dynamo is imported only once the program asks for it."""
    program = (
        "import sys, torch, dumpcmp\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with dumpcmp.capture(None, sys.argv[1]):\n"
        "    assert 'torch._dynamo' not in sys.modules\n"
        "    torch.compile(model, backend='aot_eager')(torch.ones(1, 2))\n"
        "assert torch.compile.__module__ == 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "d1")], check=True, timeout=120)
    assert {k.op for k in Archive(tmp_path / "d1")} == {"<root>", "<root>/linear"}


def test_saving_costs_nothing_without_a_capture() -> None:
    def saving(x: Tensor) -> Tensor:
        dumpcmp.save("n", x)
        return x + 1

    dumpcmp.save("nothing", torch.ones(1))
    compiled = torch.compile(saving, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1)).equal(torch.tensor([2.0]))


def test_a_notebook_cell_that_defines_its_model(tmp_path: Path) -> None:
    """Code without a file, as in Jupyter: classes from exec, lines without a source."""
    cell = (
        "import torch, dumpcmp\n"
        "class Cell(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sin()\n"
        "with dumpcmp.capture(None, path):\n"
        "    y = Cell()(torch.ones(2))\n"
    )
    exec(compile(cell, "<ipython-input-1>", "exec"), {"path": tmp_path / "d1"})
    call = Archive(tmp_path / "d1").calls[Site("Cell", 0, Op("<root>/sin"), 0)]
    assert call.source == "<ipython-input-1>:4"


def test_a_higher_precision_reaches_every_op_and_is_undone(tmp_path: Path) -> None:
    model, _ = demo.build(dtype=torch.bfloat16)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wanted = demo.generate(model)
    with dumpcmp.capture(model, tmp_path / "d1", dtype="float64"):
        demo.generate(model)
    assert demo.generate(model) == wanted
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    archive = Archive(tmp_path / "d1")
    floats = {archive[k].dtype for k in archive if "float" in archive[k].dtype}
    assert floats == {"float64"}


def test_a_step_forgets_freed_memory() -> None:
    """A new tensor at the address of a freed one is a new value."""

    class Reuser(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(50):
                x = (x + 1).clone()
            return x

    sink = MemorySink()
    with ModuleCapture(Recorder(sink, make_tap())).running():
        Reuser()(torch.zeros(1000))
    for i in range(50):
        key = Key("Reuser", 0, "<root>/clone", i, "output.0")
        assert sink.values[key][0] == i + 1


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_capture_starts_no_cuda(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has threads, and children that are forked cannot use it."""

    def started(*_: object) -> None:
        raise AssertionError("CUDA is started")

    import torch._dynamo  # which asks for devices when it traces

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for asks in ("is_available", "device_count", "_lazy_init", "get_device_name"):
        monkeypatch.setattr(torch.cuda, asks, started)
    model = Fragile()
    with dumpcmp.capture(model, tmp_path / "d", mode=mode, backward=True):
        model(torch.ones(2, 3)).sum().backward()
    assert Archive(tmp_path / "d").run[0]["run"]["device"] == platform.machine()
