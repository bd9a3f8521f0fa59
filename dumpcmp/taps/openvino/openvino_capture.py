"""Captures models in OpenVINO: nodes of the ONNX graph are calls that name their kernels.

Most nodes are fused into kernels with others, and what they give is in no memory. As of a compiled
graph, the archive tells all the same which values are one, and which kernel stored one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.graph_runs import GRAPH, TARGET, SlotOfCall, ValueOfGraph, runs_written
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.spoken import counted
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.onnx.graph_nodes import OnnxNode
from dumpcmp.taps.openvino.openvino_model import OpenVinoModel
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import Function
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step

_FOLDED = "constant folding"  # the kernel of nodes that OpenVINO computed as it compiled
_UNNAMED = "a kernel that does not name it"  # of nodes that became other layers


class OpenVinoCapture(ModuleCapture):
    """Captures calls of OpenVinoModels."""

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=None)
        self._models: dict[int, OpenVinoModel] = {}

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Nothing is compiled in here."""
        yield

    def _is_root(self, module: nn.Module) -> bool:
        return isinstance(module, OpenVinoModel) and super()._is_root(module)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs an OpenVinoModel tapped, and records its nodes."""
        if not isinstance(module, OpenVinoModel):
            return super().root_run(module, run, args, kwargs)
        self._models[id(module)] = module
        return partial(self._run, module)

    def _run(self, model: OpenVinoModel, *args: Any, **kwargs: Any) -> Any:
        given = model.given(args, kwargs)
        outputs, tapped = model.tapping.run(given)
        step = self.step
        if step is not None:
            with HOLD:
                try:
                    leaves = {**model.constants, **given}
                    _FusedRecorder(step, model, leaves, {**tapped, **outputs}).record()
                except Exception as error:
                    self.recorder.give_up(error)
        return model.result(outputs)

    def facts(self) -> dict[str, Any]:
        """What run.json says: the certificate, and how OpenVINO ran."""
        facts = {**super().facts(), "mode": "onnx", "program": "openvino", "numbers_in": "float32"}
        if not self._models:
            return {**facts, "certificate": {"holds": False, "text": "not certified: nothing ran"}}
        certificates = [certificate_of(model) for model in self._models.values()]
        worst = next((each for each in certificates if not each["holds"]), certificates[0])
        first = next(iter(self._models.values()))
        return {**facts, "certificate": worst, "openvino": first.settings.facts()}

    def remarks(self) -> list[str]:
        found = [
            f"{len(model.tapping.untapped)} values could not be tapped: {name}: {why}"
            for model in self._models.values()
            for name, why in list(model.tapping.untapped.items())[:1]
        ]
        return [*super().remarks(), *found]


def certificate_of(model: OpenVinoModel) -> dict[str, Any]:
    """Whether the tapped runs of a model are what OpenVINO does without a tap."""
    tapping = model.tapping
    compared = {"kernel": len(tapping.kernels), "output": tapping.num_outputs}
    if tapping.problems or tapping.turns is None:
        why = tapping.problems[0] if tapping.problems else "nothing was run"
        return {"holds": False, "text": f"not certified: {why}", "compared": compared}
    kernels, outputs = (counted(count, word) for word, count in compared.items())
    text = f"certified: {kernels} and {outputs} as in an untapped model"
    turns = len(tapping.turns)
    text += f", in {turns} turns" if turns > 1 else ""
    return {"holds": True, "text": text, "compared": compared}


class _FusedRecorder:
    """Records the nodes of one run, with the values that are known and the kernels of them all."""

    def __init__(
        self, step: Step, model: OpenVinoModel, leaves: dict[str, Tensor], made: dict[str, Tensor]
    ) -> None:
        self._step, self._model = step, model
        self._leaves, self._made = leaves, made
        self._kernels = model.tapping.kernel_of_layer()
        self._scopes: dict[str, Scope] = {"": step.scopes.here}
        self._places: dict[str, list[SlotOfCall]] = {}
        self._stored: dict[SlotOfCall, str] = {}

    def record(self) -> None:
        base = self._step.scopes.here
        try:
            for node in self._model.nodes:
                self._step.stand_in(self._scope(node.place.path), node.source)
                self._record(node)
        finally:
            self._step.stand_in(base)
        values = [value for name in self._places if (value := self._value(name)) is not None]
        for number, text in enumerate(runs_written(0, values, self._stored)):
            self._step.call(GRAPH, number, TARGET, text, "")

    def _scope(self, path: str) -> Scope:
        if path not in self._scopes:
            self._scopes[path] = self._step.scopes.next_of(path)
            self._step.reach(path)
        return self._scopes[path]

    def _record(self, node: OnnxNode) -> None:
        counted_call = self._step.count(Function(node.function, node.target))
        if counted_call is None:
            return
        op, number = counted_call
        names = list(node.inputs)
        while names and not names[-1]:
            names.pop()
        stood = [self._stand_in(name) for name in names]
        found, arguments = arguments_of(tuple(stood), dict(node.attributes), {})
        kernel = self._kernel(node)
        call = self._step.call(op, number, node.target, arguments, node.source, (), kernel)
        slots = {id(tensor): slot for slot, tensor in found}
        for name, tensor in zip(names, stood, strict=True):
            if tensor is not None:
                self._put(call, slots[id(tensor)], name, tensor, self._step.tap.inputs)
        for at, name in enumerate(node.outputs):
            if name:
                known = self._made.get(name)
                self._put(call, f"output.{at}", name, known, self._step.tap.outputs)
                if known is not None:
                    self._stored[str(op), number, f"output.{at}"] = kernel

    def _stand_in(self, name: str) -> Tensor | None:
        """A value, or a tensor in place of one that is in no memory."""
        if not name:
            return None
        known = self._leaves.get(name, self._made.get(name))
        return torch.empty(0) if known is None else known.view(known.shape)

    def _put(
        self, call: Call, slot: str, name: str, tensor: Tensor | None, is_wanted: bool
    ) -> None:
        self._places.setdefault(name, []).append((str(call.op), call.call, slot))
        known = self._leaves.get(name, self._made.get(name))
        if known is not None and tensor is not None and is_wanted:
            self._step.put(call, slot, known)

    def _kernel(self, node: OnnxNode) -> str:
        """The kernel that a node is part of."""
        layers = (self._model.tapping.layers.get(name, "") for name in node.outputs)
        found = next((self._kernels[each] for each in layers if each in self._kernels), None)
        if found is not None:
            return f"{found.kind} {found.name}"
        return _FOLDED if all(name in self._leaves for name in node.inputs if name) else _UNNAMED

    def _value(self, name: str) -> ValueOfGraph | None:
        known = self._leaves.get(name, self._made.get(name))
        if known is not None:
            dtype = str(known.dtype).removeprefix("torch.")
            return ValueOfGraph(dtype, tuple(known.shape), None, tuple(self._places[name]))
        dtype, sizes = self._model.tapping.forms.get(name, ("float32", None))
        return ValueOfGraph(dtype or "float32", sizes, None, tuple(self._places[name]))
