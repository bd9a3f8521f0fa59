"""Where the nodes of a graph stand in the model that was exported: for telling, never for truth.

Names and metadata of the file say it: torch's exporter writes module paths, classes and the user's
line beside each node; the older one writes them into the names of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dumpcmp.taps.recording.calls import traced_line

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_STACK = "pkg.torch.onnx.stack_trace"
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_PATH = re.compile(r"[A-Za-z0-9_<>-]+(\.[A-Za-z0-9_<>-]+)*")
_IN_BLOCKS = "_nchwc"  # behind the name of a node that takes images in blocks of channels
_LONGEST = 1 << 16  # characters of metadata that are looked at


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The module that a node belongs to, and the line of the program."""

    path: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class NodePlaces:
    """The places of the nodes of a model as it was exported."""

    by_node: Mapping[str, NodePlace] = field(default_factory=dict)  # by its name
    by_value: Mapping[str, NodePlace] = field(default_factory=dict)  # by what it gives
    root: str = ""  # the class of the model

    @classmethod
    def of(cls, model: ModelProto) -> NodePlaces:
        """What `model` tells of itself."""
        by_node: dict[str, NodePlace] = {}
        by_value: dict[str, NodePlace] = {}
        root = ""
        weights = {each.name for each in model.graph.initializer}
        waiting = [(model.graph, NodePlace())]
        while waiting:
            graph, around = waiting.pop()
            for node in graph.node:
                told = {entry.key: entry.value[:_LONGEST] for entry in node.metadata_props}
                place = _place(told, node.name)
                if place is None:
                    path = _path_of_weight(node, weights) or around.path
                    place = NodePlace(path, traced_line(told.get(_STACK)) or around.line)
                classes = _words(told.get(_CLASSES, ""))
                root = root or (classes[0].rpartition(".")[2] if len(classes) > 1 else "")
                by_node.setdefault(node.name, place)
                by_value |= dict.fromkeys(filter(None, node.output), place)
                waiting += [(each.g, place) for each in node.attribute if each.HasField("g")]
        return cls(by_node, by_value, root)

    def of_node(self, node: NodeProto) -> NodePlace | None:
        """The place of a node of the optimised graph, whose name or values may be new."""
        name = node.name.removeprefix("fused ").removesuffix(_IN_BLOCKS)
        for value in (*node.output, name):  # a node in blocks has the name of what it gave before
            if value in self.by_value:
                return self.by_value[value]
        while name:  # a fused node begins with the name of one that is in it
            if name in self.by_node:
                return self.by_node[name]
            name = name.rpartition("/")[0]
        return None

    @property
    def paths(self) -> set[str]:
        """All modules that have nodes, and those around them."""
        found = {place.path for place in self.by_node.values()}
        return {path[:end] for path in found for end in _ends(path)}

    def of_all(self, nodes: Iterable[NodeProto]) -> list[NodePlace]:
        """The place of each node; one that tells nothing stands where what it gives is taken."""
        listed = list(nodes)
        found = [self.of_node(node) for node in listed]
        takers: dict[str, NodePlace] = {}
        for at in range(len(listed) - 1, -1, -1):
            place = found[at] or next(
                (takers[value] for value in listed[at].output if value in takers), NodePlace()
            )
            found[at] = place
            for value in listed[at].input:
                takers.setdefault(value, place)
        return [place or NodePlace() for place in found]


def _ends(path: str) -> Iterable[int]:
    return [at for at, letter in enumerate(path) if letter == "."] + [len(path)]


def _place(told: Mapping[str, str], name: str) -> NodePlace | None:
    """The place that a node's metadata or name tells; None where neither tells a module."""
    scopes = _words(told.get(_SCOPES, ""))
    if len(scopes) > 1:
        path = scopes[-2]
        return NodePlace(path if _PATH.fullmatch(path) else "", traced_line(told.get(_STACK)))
    if scopes or not name.startswith("/"):
        return None
    return NodePlace(_path_in(name))


def _path_of_weight(node: NodeProto, weights: set[str]) -> str:
    """The module whose weight a node reads: ``b`` for ``b.weight``."""
    for name in node.input:
        path, _, word = name.rpartition(".")
        if name in weights and word.isidentifier() and _PATH.fullmatch(path):
            return str(path)
    return ""


def _path_in(name: str) -> str:
    """The module in a name such as ``/layers.0/attn/q/MatMul``, as the older exporter has them.

    Each part is a module by its name in the one around it, or by the part of its path behind that.
    """
    words = [word for word in name.split("/")[1:-1] if _PATH.fullmatch(word)]
    return ".".join(words)


def _words(text: str) -> list[str]:
    return [one or other for one, other in _QUOTED.findall(text)]
