"""What can be dumped: a script or a module with its arguments, or the model of a factory."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.loading import load
from dumpcmp.taps.recording.arguments import slots_of


def run_script(script: str, arguments: tuple[str, ...]) -> None:
    """Run a file as Python itself would, with `arguments` in sys.argv."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def run_module(module: str, arguments: tuple[str, ...]) -> None:
    """Run a module as ``python -m`` would."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def factory_program(name: str, backward: bool = False) -> Callable[[], object]:
    """A program that calls the model which ``pkg.mod:build`` makes on its example inputs."""
    factory = load("--model", name)
    return lambda: _call(*_model_and_inputs(name, factory()), backward)


def built(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model which ``pkg.mod:build`` makes, and what to call it with."""
    return _model_and_inputs(name, load("--model", name)())


def _model_and_inputs(name: str, made: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, nn.Module):
        made = (made, getattr(made, "example_inputs", None))
    match made:
        case (nn.Module() as model, dict() as kwargs):
            return model, (), kwargs
        case (nn.Module() as model, (*args,)):
            return model, tuple(args), {}
        case (nn.Module() as model, Tensor() as tensor):
            return model, (tensor,), {}
    raise CaptureError(
        f"--model {name} gave {type(made).__name__}, not a model and its inputs",
        hint="return (model, inputs): inputs are a tensor, a tuple, or a dict of keywords",
    )


def _call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool) -> None:
    result = model(*args, **kwargs)
    if backward:
        floating = [t for _, t in slots_of("output", result) if t.requires_grad]
        sum(tensor.sum() for tensor in floating).backward()  # type: ignore[union-attr]
