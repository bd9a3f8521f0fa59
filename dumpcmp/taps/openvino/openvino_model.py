"""An ONNX model as a module that OpenVINO runs: its graph is the program of which that is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dumpcmp.taps.exported.bound_inputs import ModelInput, bound
from dumpcmp.taps.onnx.graph_nodes import NodeReader
from dumpcmp.taps.onnx.model import planted
from dumpcmp.taps.onnx.places import NodePlaces
from dumpcmp.taps.onnx.protobufs import read_model
from dumpcmp.taps.onnx.tensors import TensorFiles
from dumpcmp.taps.openvino.openvino_runtime import OpenVinoTapping


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """How OpenVINO is to run a model: on which device, and the properties that it compiles with."""

    device: str = "CPU"
    options: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {"device": self.device, "options": dict(self.options)}


class OpenVinoModel(nn.Module):
    """A model that OpenVINO runs."""

    def __init__(self, path: str | Path, settings: OpenVinoSettings | None = None) -> None:
        super().__init__()
        self.file, self.settings = Path(path), settings or OpenVinoSettings()
        exported = read_model(self.file)
        files = TensorFiles(self.file.parent)
        self.places = NodePlaces.of(exported)
        versions = {each.domain: each.version for each in exported.opset_import}
        reader = NodeReader(versions, self.places, files)
        self.nodes = list(reader.nodes(exported.graph.node))
        self.constants = {each.name: files.tensor(each) for each in exported.graph.initializer}
        self.constants |= reader.constants(exported.graph.node)
        self.constants |= planted(self, self.constants, self.places)
        self.tapping = OpenVinoTapping(self.file, self.settings.device, self.settings.options)
        self.inputs = [self._input(each) for each in self.tapping.model.inputs]

    def _input(self, port: Any) -> ModelInput:
        name = port.get_any_name()
        dtype, _ = self.tapping.forms[name]
        shape = port.get_partial_shape()
        sizes = [None if size.is_dynamic else size.get_length() for size in shape]
        return ModelInput(name, dtype, sizes, str(port.get_element_type()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What OpenVINO gives: the output, or a tuple of them."""
        return self.result(self.tapping.plain_run(self.given(args, kwargs)))

    def given(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of a call, by the names of the model's inputs."""
        return bound(str(self.file), self.inputs, args, kwargs)

    def result(self, outputs: Mapping[str, Tensor]) -> Any:
        """The outputs as a module returns them."""
        found = tuple(outputs[name] for name in self.tapping.outputs)
        return found[0] if len(found) == 1 else found


def openvino_model(path: str | Path, settings: OpenVinoSettings | None = None) -> OpenVinoModel:
    """The model at `path`, of a class that has the name of the one that was exported."""
    made = OpenVinoModel(path, settings)
    name = made.places.root
    if name.isidentifier():
        made.__class__ = type(name, (OpenVinoModel,), {"__module__": OpenVinoModel.__module__})
    return made
