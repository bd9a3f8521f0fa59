"""Captures ONNX models: each node of the graph that ONNX Runtime runs is a call of its op."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.spoken import counted
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.onnx.control_flow import NodeRun
from dumpcmp.taps.onnx.model import OnnxModel
from dumpcmp.taps.recording.functions import Function
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step


class OnnxCapture(ModuleCapture):
    """Captures calls of OnnxModels; what torch computes beside them is not recorded."""

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=None)
        self._models: dict[int, OnnxModel] = {}

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Nothing is compiled in here."""
        yield

    def _is_root(self, module: nn.Module) -> bool:
        return isinstance(module, OnnxModel) and super()._is_root(module)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs an OnnxModel tapped, and records its nodes."""
        if not isinstance(module, OnnxModel):
            return super().root_run(module, run, args, kwargs)
        self._models[id(module)] = module
        return partial(self._run, module)

    def _run(self, model: OnnxModel, *args: Any, **kwargs: Any) -> Any:
        fed = model.fed(args, kwargs)
        outputs, tapped = model.tapping.run(fed)
        step = self.step
        values = {**model.constants, **model.folded_values, **fed, **outputs, **tapped}
        if step is not None:
            with HOLD:
                try:
                    _NodeRecorder(step, model, values).record()
                except Exception as error:
                    self.recorder.give_up(error)
        return model.result({name: values[name] for name in outputs})

    def facts(self) -> dict[str, Any]:
        """What run.json says: the certificate, and how each graph was tapped."""
        told = [certificate_of(model) for model in self._models.values()]
        facts = {**super().facts(), "numbers_in": numbers_in(self._models.values())}
        if not told:
            return {**facts, "certificate": {"holds": False, "text": "not certified: nothing ran"}}
        worst = next((each for each in told if not each["holds"]), told[0])
        settings = next(iter(self._models.values())).settings.facts()
        return {**facts, "certificate": worst, "onnxruntime": settings}

    def remarks(self) -> list[str]:
        found = [
            f"{len(model.tapping.untapped)} values could not be tapped: {name}: {why}"
            for model in self._models.values()
            for name, why in list(model.tapping.untapped.items())[:1]
        ]
        found += [
            f"{name} is one call, its body was not recorded: {why}"
            for model in self._models.values()
            for name, why in model.unroller.problems.items()
        ]
        return [*super().remarks(), *found]


def numbers_in(models: Iterable[OnnxModel]) -> str:
    """The dtype that the graphs have their own numbers in: attributes are float32 at best."""
    found = {
        str(tensor.dtype).removeprefix("torch.")
        for model in models
        for tensor in model.all_constants()
        if tensor.numel() == 1
    }
    return next((name for name in ("bfloat16", "float16") if name in found), "float32")


def certificate_of(model: OnnxModel) -> dict[str, Any]:
    """Whether the tapped run of a model is what ONNX Runtime does without a tap."""
    tapping = model.tapping
    turns, num_nodes = len(tapping.turns or ()), len(tapping.graph.graph.node)
    compared = {"node": num_nodes, "output": tapping.num_outputs}
    if tapping.problems or not turns:
        why = tapping.problems[0] if tapping.problems else "nothing was run"
        return {"holds": False, "text": f"not certified: {why}", "compared": compared}
    said = (
        f"certified: {counted(num_nodes, 'node')} and {counted(tapping.num_outputs, 'output')} "
        "as in an untapped session"
    )
    said += f", in {turns} turns" if turns > 1 else ""
    if num_bodies := model.unroller.num_bodies:
        said += f"; {counted(num_bodies, 'body', 'bodies')} of control flow gave the same bits"
    return {"holds": True, "text": said, "compared": compared}


class _NodeRecorder:
    """Records the nodes of one run, each in the scope of its module."""

    def __init__(self, step: Step, model: OnnxModel, values: dict[str, Tensor]) -> None:
        self._step, self._model, self._values = step, model, values
        self._scopes: dict[str, Scope] = {"": step.scopes.here}

    def record(self) -> None:
        base = self._step.scopes.here
        runs = self._model.unroller.runs(self._model.nodes, ChainMap(self._values))
        try:
            for run in runs:
                self._step.stand_in(self._scope(run.node.place.path), run.node.source)
                self._record(run)
        finally:
            self._step.stand_in(base)

    def _scope(self, path: str) -> Scope:
        if path not in self._scopes:
            self._scopes[path] = self._step.scopes.next_of(path)
            self._step.reach(path)
        return self._scopes[path]

    def _record(self, run: NodeRun) -> None:
        node, taken = run.node, list(run.inputs)
        while taken and taken[-1] is None:
            taken.pop()
        function = Function(node.function, node.target)
        call = self._step.function(function, tuple(taken), dict(node.attributes))
        if call is None or not self._step.tap.outputs:
            return
        found = [(f"output.{at}", made) for at, made in enumerate(run.outputs) if made is not None]
        self._step.store(call, found)
