"""An ONNX model as a module that can be called: ONNX Runtime runs it, node by node where captured.

Its weights have the paths that they had in the model which was exported, where the file tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.taps.exported.bound_inputs import ModelInput, bound
from dumpcmp.taps.exported.planting import plant
from dumpcmp.taps.onnx.blocked_images import NCHWC
from dumpcmp.taps.onnx.control_flow import GraphUnroller
from dumpcmp.taps.onnx.folding import folded_nodes
from dumpcmp.taps.onnx.graph_nodes import NodeReader, OnnxNode
from dumpcmp.taps.onnx.places import NodePlaces
from dumpcmp.taps.onnx.protobufs import read_model
from dumpcmp.taps.onnx.sessions import GraphTapping, OnnxSettings, run_session, tapping
from dumpcmp.taps.onnx.tensors import TensorFiles, dtype_of, to_ort

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

_MADE = re.compile(r"val_\d+|\w*const\w*|_to_copy.*")  # names that the exporter gives to constants


def planted(
    root: nn.Module, constants: Mapping[str, Tensor], places: NodePlaces
) -> dict[str, Tensor]:
    """Have weights of a graph at the paths that they had; those that are parameters now."""
    known, found = places.paths | {""}, {}
    for name, tensor in constants.items():
        path, _, word = name.rpartition(".")
        if not word.isidentifier() or path not in known or _MADE.fullmatch(name):
            continue
        weight = plant(root, name, tensor, tensor.is_floating_point())
        if weight is not None:
            found[name] = weight
    return found


class OnnxModel(nn.Module):
    """A model that ONNX Runtime runs; `close` it, or use it in a ``with`` block."""

    def __init__(self, path: str | Path, settings: OnnxSettings | None = None) -> None:
        super().__init__()
        at = Path(path)
        self.file = at
        self.settings = settings or OnnxSettings()
        self._room = TemporaryDirectory(prefix="dumpcmp-onnx-")
        room = Path(self._room.name)
        exported = None if at.suffix == ".ort" else read_model(at)
        self.tapping: GraphTapping = tapping(at, self.settings, room)
        self.places = NodePlaces.of(self.tapping.graph if exported is None else exported)
        graph = self.tapping.graph.graph
        files = TensorFiles(room)
        self.constants = {each.name: files.tensor(each) for each in graph.initializer}
        folded = [] if exported is None else folded_nodes(exported, at.parent, self.constants)
        self.folded_values = {name: tensor for each in folded for name, tensor in each.values()}
        for each in folded:
            self.constants |= each.leaves
        versions = {each.domain: each.version for each in self.tapping.graph.opset_import}
        old = {} if exported is None else {e.domain: e.version for e in exported.opset_import}
        folded_protos = [node for each in folded for node in each.nodes]
        self.nodes = [
            *NodeReader(old, self.places, files).nodes(folded_protos),
            *NodeReader(versions, self.places, files).nodes(graph.node),
        ]
        self.unroller = GraphUnroller(self.tapping.graph, self.settings, room, self.named_filters)
        self._filters = [] if exported is None else filters_of(exported, self.nodes)
        self.inputs = list(self.tapping.plain.get_inputs())
        self.constants |= planted(self, self.constants, self.places)

    def all_constants(self) -> Iterator[Tensor]:
        """The constants of the graph and of the bodies in it."""
        yield from self.constants.values()
        for node in self.nodes:
            for body in node.bodies.values():
                yield from body.all_constants()

    def named_filters(self) -> dict[str, Tensor]:
        """The filters that the file has, by name: ORT may lay out its own otherwise."""
        files, known = TensorFiles(self.file.parent), dict(self.named_parameters())
        return {
            each.name: known[each.name] if each.name in known else files.tensor(each)
            for each in self._filters
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files of the optimised graph."""
        self._room.cleanup()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What ONNX Runtime gives: the output, or a tuple of them."""
        feeds = {name: to_ort(tensor) for name, tensor in self.fed(args, kwargs).items()}
        names = self.tapping.outputs
        return self.result(run_session(self.tapping.plain, names, feeds))

    def result(self, outputs: Mapping[str, Tensor]) -> Any:
        """The outputs as a module returns them."""
        given = tuple(outputs[name] for name in self.tapping.outputs if name in outputs)
        if len(given) < len(self.tapping.outputs):
            missing = next(name for name in self.tapping.outputs if name not in outputs)
            raise CaptureError(f"output {missing} is no tensor, and dumpcmp knows nothing else")
        return given[0] if len(given) == 1 else given

    def fed(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of a call, by the names of the model's inputs: by name, the rest in order."""
        return bound(str(self.file), [_input_of(each) for each in self.inputs], args, kwargs)


def _input_of(told: Any) -> ModelInput:
    sizes = [size if isinstance(size, int) else None for size in told.shape or []]
    return ModelInput(told.name, dtype_of(told.type), sizes, told.type)


def filters_of(exported: ModelProto, nodes: Iterable[OnnxNode]) -> list[TensorProto]:
    """The weights of four dims, where nodes take filters that lie in blocks of channels."""
    if not any(node.domain == NCHWC for node in nodes):
        return []
    return [each for each in exported.graph.initializer if len(each.dims) == 4]


def onnx_model(path: str | Path, settings: OnnxSettings | None = None) -> OnnxModel:
    """The model at `path`, of a class that has the name of the one that was exported."""
    made = OnnxModel(path, settings)
    name = made.places.root
    if name.isidentifier():
        made.__class__ = type(name, (OnnxModel,), {"__module__": OnnxModel.__module__})
    return made
