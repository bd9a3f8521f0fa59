"""Constants that ONNX Runtime folded: the nodes of the exported graph that they were computed by.

They are a part of the program: a weight that is transposed before it is used is the weight that the
model has, and a wrong one is a wrong kernel. What they give is taken from a session of those nodes
alone, and holds only where it is what the optimised graph has, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.taps.onnx.sessions import OnnxSettings, open_session, run_session
from dumpcmp.taps.onnx.tensors import TensorFiles

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_MOST_BYTES = 1 << 30  # of weights that are computed with again
_DRAWS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
          "Multinomial")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Nodes that were folded, in order, and all values that they take and give."""

    nodes: Sequence[NodeProto]
    given: Mapping[str, Tensor]
    leaves: Mapping[str, Tensor] = field(default_factory=dict)  # which they begin with

    def values(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.given.items()


def folded_nodes(model: ModelProto, room: Path, constants: Mapping[str, Tensor]) -> list[Folded]:
    """The nodes of `model` that computed what is among the `constants` of the optimised graph."""
    nodes = _constant_nodes(model)
    makers = {name: node for node in nodes for name in node.output}
    wanted = [name for name in constants if name in makers]
    needed = _behind(wanted, makers)
    chosen = [node for node in nodes if id(node) in needed]
    if not any(node.op_type != "Constant" for node in chosen):
        return []
    leaves = _leaves(model, chosen, makers, room)
    given = {} if leaves is None else _run(model, chosen, leaves)
    right = [name for name in wanted if name in given and same_bits(given[name], constants[name])]
    needed = _behind(right, makers)
    kept = [node for node in chosen if id(node) in needed]
    if leaves is None or not any(node.op_type != "Constant" for node in kept):
        return []
    names = {name for node in kept for name in node.output}
    taken = {name for node in kept for name in node.input}
    # what the optimised graph has is one value with what these nodes gave
    values = {name: constants.get(name, given[name]) for name in names if name in given}
    return [Folded(kept, values, {n: t for n, t in leaves.items() if n in taken})]


def _constant_nodes(model: ModelProto) -> list[NodeProto]:
    """The nodes that take nothing but constants, in order."""
    known = {each.name for each in model.graph.initializer}
    known -= {each.name for each in model.graph.input}
    found = []
    for node in model.graph.node:
        has_body = any(each.HasField("g") or each.graphs for each in node.attribute)
        is_constant = all(name in known for name in node.input if name)
        is_plain = node.domain in ("", "ai.onnx") and node.op_type not in _DRAWS
        if is_constant and is_plain and not has_body and (node.input or node.op_type == "Constant"):
            known |= {name for name in node.output if name}
            found.append(node)
    return found


def _behind(names: Sequence[str], makers: Mapping[str, NodeProto]) -> set[int]:
    found: set[int] = set()
    waiting = list(names)
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and id(node) not in found:
            found.add(id(node))
            waiting += node.input
    return found


def _leaves(
    model: ModelProto, nodes: Sequence[NodeProto], makers: Mapping[str, NodeProto], room: Path
) -> dict[str, Tensor] | None:
    """The initialisers that these nodes take; None where they are too many bytes."""
    protos = {each.name: each for each in model.graph.initializer}
    names = dict.fromkeys(name for node in nodes for name in node.input if name in protos)
    files = TensorFiles(room)
    found = {name: files.tensor(protos[name]) for name in names if name not in makers}
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    return found if nbytes <= _MOST_BYTES else None


def _run(
    model: ModelProto, nodes: Sequence[NodeProto], leaves: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the nodes give when nothing is optimised; nothing where they cannot be run alone."""
    import onnx

    protos = {each.name: each for each in model.graph.initializer}
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.graph.name = "folded"
    part.graph.node.extend(nodes)
    for name in leaves:
        one = part.graph.initializer.add()
        one.CopyFrom(protos[name])
        if one.data_location == onnx.TensorProto.EXTERNAL:
            array = leaves[name].contiguous()
            raw = array.reshape(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
            one.ClearField("external_data")
            one.data_location = onnx.TensorProto.DEFAULT
            one.raw_data = raw
    outputs = [name for node in nodes for name in node.output if name]
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    with TemporaryDirectory(prefix="dumpcmp-onnx-") as folder:
        at = Path(folder, "folded.onnx")
        at.write_bytes(part.SerializeToString())
        try:
            session = open_session(at, OnnxSettings(), None, optimises=False)
            return run_session(session, outputs, {})
        except CaptureError:
            return {}
