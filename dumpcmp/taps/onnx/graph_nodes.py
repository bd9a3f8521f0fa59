"""The nodes of a graph that ONNX Runtime runs, and of the graphs inside of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dumpcmp.taps.onnx.places import NodePlace, NodePlaces
from dumpcmp.taps.onnx.protobufs import attribute_tensors, attributes_of
from dumpcmp.taps.onnx.tensors import TensorFiles

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

STANDARD = ("", "ai.onnx")  # both are ONNX's own domain


@dataclass(frozen=True, slots=True, eq=False)
class OnnxBody:
    """The graph inside of an If, a Loop or a Scan."""

    graph: GraphProto
    nodes: Sequence[OnnxNode]
    constants: Mapping[str, Tensor]

    @property
    def inputs(self) -> list[str]:
        return [each.name for each in self.graph.input]

    @property
    def outputs(self) -> list[str]:
        return [each.name for each in self.graph.output]

    def all_constants(self) -> Iterator[Tensor]:
        """Its constants, and those of the bodies inside of it."""
        yield from self.constants.values()
        for node in self.nodes:
            for body in node.bodies.values():
                yield from body.all_constants()


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """A node of the graph that runs: an op with its attributes, by the names of its values."""

    name: str
    domain: str  # "onnx", or "com.microsoft"
    op: str
    version: int  # of the domain's ops
    inputs: tuple[str, ...]  # empty: left out
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]  # numbers, words, lists, and tensors
    place: NodePlace
    bodies: Mapping[str, OnnxBody] = field(default_factory=dict)  # by attribute: "then_branch"

    @property
    def function(self) -> str:
        """Its op as captures name it."""
        return f"{self.domain}.{self.op}"

    @property
    def target(self) -> str:
        """What a replay looks for in its table of ops."""
        is_float = self.op == "QGemm" and not any(self.inputs[7:8])  # its output has no levels
        return f"{self.domain}::{self.op}{'ToFloat' * is_float}.{self.version}"

    @property
    def source(self) -> str:
        """The line of the program, and the name in the graph."""
        return f"{self.place.line} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class NodeReader:
    """Reads nodes, and the tensors in them."""

    versions: Mapping[str, int]  # of the ops of each domain
    places: NodePlaces
    files: TensorFiles

    def nodes(self, nodes: Sequence[NodeProto]) -> Iterator[OnnxNode]:
        """All nodes but constants, which are values."""
        for node, place in zip(nodes, self.places.of_all(nodes), strict=True):
            if node.op_type == "Constant" and node.domain in STANDARD:
                continue
            protos = attribute_tensors(node).items()
            tensors = {name: self.files.tensor(proto) for name, proto in protos}
            bodies = {
                each.name: self._body(each.g) for each in node.attribute if each.HasField("g")
            }
            attributes = attributes_of(node) | tensors
            if node.op_type == "Split" and len(node.input) < 2:
                attributes.setdefault(
                    "num_outputs", len(node.output)
                )  # an attribute since opset 18
            yield OnnxNode(
                node.name, "onnx" if node.domain in STANDARD else node.domain, node.op_type,
                self.versions.get(node.domain, 1), tuple(node.input), tuple(node.output),
                attributes, place, bodies,
            )  # fmt: skip

    def _body(self, graph: GraphProto) -> OnnxBody:
        constants = {each.name: self.files.tensor(each) for each in graph.initializer}
        constants |= self.constants(graph.node)
        return OnnxBody(graph, list(self.nodes(graph.node)), constants)

    def constants(self, nodes: Iterable[NodeProto]) -> dict[str, Tensor]:
        """The values of nodes that are constants, by name."""
        return {
            node.output[0]: self.files.tensor(proto)
            for node in nodes
            if node.op_type == "Constant" and node.domain in STANDARD
            for proto in attribute_tensors(node).values()
        }


def read_before(graph: GraphProto) -> list[str]:
    """The names of values that a body takes from the graphs around it."""
    known = {each.name for each in (*graph.input, *graph.initializer)}
    found: dict[str, None] = {}
    for node in graph.node:
        names = list(node.input)
        for attribute in node.attribute:
            names += read_before(attribute.g) if attribute.HasField("g") else []
        found |= dict.fromkeys(name for name in names if name and name not in known)
        known.update(node.output)
    known_outputs = (each.name for each in graph.output)
    return [*found, *(name for name in known_outputs if name not in known and name not in found)]
