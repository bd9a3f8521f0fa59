"""A program of ``torch.export`` as a module: its weights at their paths, its graph as its forward.

What runs is the graph as it was exported, decomposed or not: node by node where it is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.package_weights import LoadedProgram, load_program
from dumpcmp.taps.exported.bound_inputs import ModelInput, bound
from dumpcmp.taps.exported.planting import plant

RunGraph = Callable[[fx.GraphModule, list[Any]], Any]
_PLANTED = (InputKind.PARAMETER, InputKind.BUFFER)


class ExportedModel(nn.Module):
    """An exported program, which is called with tensors for its inputs."""

    def __init__(self, loaded: LoadedProgram, place: str) -> None:
        super().__init__()
        program, self.place = loaded.program, place
        self.graph_module: fx.GraphModule
        object.__setattr__(self, "graph_module", program.graph_module)  # no module of the model
        self.signature = program.graph_signature
        self.constants: dict[str, Any] = {}
        self.root = ""  # the class of the model that was exported
        for spec in self.signature.input_specs:
            if spec.kind in _PLANTED and spec.target is not None:
                tensor = loaded.tensors[spec.target]
                plant(self, spec.target, tensor, spec.kind is InputKind.PARAMETER)
            elif spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None:
                self.constants[spec.target] = loaded.tensors[spec.target]
            elif spec.kind is not InputKind.USER_INPUT and spec.kind not in _PLANTED:
                raise CaptureError(
                    f"{place} takes {spec.arg.name}, {spec.kind.name.lower().replace('_', ' ')}, "
                    "which cannot be made without running code",
                    hint="export the model without custom objects",
                )
        self.inputs = list(self._user_inputs())

    def _user_inputs(self) -> Iterator[ModelInput]:
        examples = {node.name: node.meta.get("val") for node in self.graph_module.graph.nodes}
        for spec in self.signature.input_specs:
            if spec.kind is not InputKind.USER_INPUT or isinstance(spec.arg, ConstantArgument):
                continue
            example = examples.get(spec.arg.name)
            if not isinstance(spec.arg, TensorArgument) or not isinstance(example, Tensor):
                yield ModelInput(spec.arg.name, "", (), "a number")
                continue
            sizes = [size if isinstance(size, int) else None for size in example.shape]
            yield ModelInput(spec.arg.name, str(example.dtype).removeprefix("torch."), sizes)

    @property
    def writes(self) -> bool:
        """Whether it changes buffers or inputs."""
        if any(spec.target is not None for spec in self.signature.output_specs):
            return True
        targets = (n.target for n in self.graph_module.graph.nodes if n.op == "call_function")
        return any(isinstance(op, OpOverload) and op._schema.is_mutable for op in targets)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the program gives: the output, or a tuple of them."""
        return self.run(lambda graph, flat: graph(*flat), args, kwargs)

    def run(self, run_graph: RunGraph, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The same by `run_graph`, which is given the graph and all that it takes."""
        given = bound(self.place, self.inputs, args, kwargs)
        flat = [self._value(spec, given) for spec in self.signature.input_specs]
        return self._settled(run_graph(self.graph_module, flat), given)

    def _value(self, spec: Any, given: Mapping[str, Tensor]) -> Any:
        """What the graph takes for an input of its own, or of the user."""
        if spec.kind is InputKind.USER_INPUT:
            is_constant = isinstance(spec.arg, ConstantArgument)
            return spec.arg.value if is_constant else given[spec.arg.name]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            return self.constants[spec.target]
        path, _, name = spec.target.rpartition(".")
        return getattr(self.get_submodule(path), name)

    def paths_of_weights(self) -> dict[int, str]:
        """The path of the module of each weight, by its id; those of the root have none."""
        return {id(tensor): name.rpartition(".")[0] for name, tensor in self.named_parameters()
                if "." in name}  # fmt: skip

    def _settled(self, results: Any, given: Mapping[str, Tensor]) -> Any:
        """Write what the graph gives for buffers and inputs that it changed; return the rest."""
        found = []
        with torch.no_grad():
            for spec, result in zip(self.signature.output_specs, results, strict=True):
                if spec.kind is OutputKind.USER_OUTPUT:
                    found.append(result)
                elif spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target is not None:
                    given[spec.target].copy_(result)
                elif spec.target is not None and spec.kind is not OutputKind.LOSS_OUTPUT:
                    path, _, name = spec.target.rpartition(".")
                    getattr(self.get_submodule(path), name).copy_(result)
        return found[0] if len(found) == 1 else tuple(found)


def exported_model(source: Any) -> ExportedModel:
    """The model of a ``.pt2``, or of a program, of a class named as the one that was exported."""
    if isinstance(source, torch.export.ExportedProgram):
        tensors = {**source.state_dict, **source.constants}
        model = ExportedModel(LoadedProgram(source, tensors), "the exported program")
    else:
        model = ExportedModel(load_program(Path(source)), str(source))
    name = _root_of(model.graph_module)
    if name.isidentifier():
        model.__class__ = type(name, (ExportedModel,), {"__module__": ExportedModel.__module__})
    return model


def _root_of(graph: fx.GraphModule) -> str:
    """The name of the class of the model, which stands outermost beside its nodes."""
    for node in graph.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if not path:
                return str(kind).rpartition(".")[2]
    return ""
