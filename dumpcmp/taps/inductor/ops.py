"""The ops of dynamo's graph by name, and which of them a node of a later graph belongs to."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, fx

from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.record import NO_KERNEL, Call
from dumpcmp.taps.modes import graph as graph_capture
from dumpcmp.taps.recording import arguments as slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.naming import NO_OP, Function, attribute_of, function_of
from dumpcmp.taps.recording.step import Step

MARK = "dumpcmp"  # in Node.meta: the Marks of the node


class Mark(NamedTuple):
    """Says of a node that its value is this slot of this op."""

    op: int  # its position among the ops of dynamo's graph
    slot: Slot


@dataclass(frozen=True, slots=True)
class GraphOp:
    """One node of dynamo's graph that is an op: the function, and the module that it stands in."""

    node: str
    function: Function
    place: graph_capture.NodeHome


@dataclass(frozen=True, slots=True)
class Traced:
    """One graph of dynamo."""

    ops: Sequence[GraphOp]
    index: dict[str, int]  # node of dynamo's graph -> position in `ops`
    digest: str  # by which generated code refers to it
    bodies: dict[fx.Graph, str]  # of checkpointed regions: what stands before their nodes' names
    sequence: dict[int, int] = field(default_factory=dict)  # autograd's number -> op

    def number_of(self, node: fx.Node) -> int | None:
        """The op that `node` of dynamo's graph, or of a body in it, is."""
        return self.index.get(self.bodies.get(node.graph, "") + node.name)


def named(graph: fx.GraphModule, model: Model, base: str) -> Traced:
    """The ops of dynamo's `graph`, which was traced in a call of the module `base` of `model`."""
    bodies: dict[fx.Graph, str] = {}
    ops = list(_ops_of(graph, model, base, bodies))
    written = [
        (op.node, op.function.name, op.place.path, op.place.relative, op.place.owner) for op in ops
    ]
    digest = hashlib.sha256(json.dumps(written).encode()).hexdigest()[:32]
    return Traced(ops, {op.node: number for number, op in enumerate(ops)}, digest, bodies)


def _ops_of(
    graph: fx.GraphModule, model: Model, base: str, bodies: dict[fx.Graph, str], prefix: str = ""
) -> Iterator[GraphOp]:
    """The ops of `graph` in order; those of a checkpointed region stand in its place."""
    places = graph_capture.homes_of(graph, model, base)
    for node in graph.graph.nodes:
        body = graph_capture.body_of(node)
        if body is not None:
            bodies[body.graph] = f"{prefix}{node.name}."
            yield from _ops_of(body, model, base, bodies, bodies[body.graph])
        elif (function := _function(node)).name:
            yield GraphOp(prefix + node.name, function, places[node])


def _function(node: fx.Node) -> Function:
    """The torch function that `node` calls, if it calls one on or for a tensor."""
    if node.op == "call_method":
        method = getattr(torch.Tensor, str(node.target), None)
        return NO_OP if method is None else function_of(method)  # of a DTensor: it only moves
    if node.op != "call_function" or isinstance(node.target, str):
        return NO_OP
    if node.target is getattr:
        return attribute_of(str(node.args[1]))
    operands = [n.meta.get("example_value") for n in node.all_input_nodes]
    if node.target is operator.getitem and not isinstance(operands[0], Tensor):
        return NO_OP
    values = [*operands, node.meta.get("example_value")]
    if not any(slots.slots_of("", value) for value in values):
        return NO_OP
    function = function_of(node.target)
    return NO_OP if function.name == "from_local" else function  # a DTensor is made, not computed


def op_of(graph: Traced, node: fx.Node) -> int | None:
    """The op that `node` of an AOT or post-grad graph belongs to.

    A forward node remembers dynamo's node; a backward node has autograd's number of the
    forward node whose gradient it computes.
    """
    prefixes = {id(body): prefix for body, prefix in graph.bodies.items()}
    sources = node.meta.get("from_node")
    while sources:
        source = sources[-1]
        name = prefixes.get(source.node_info.graph_id, "") + source.name
        if name in graph.index and not source.from_node:
            return graph.index[name]
        sources = source.from_node
    marks: list[Mark] | None = node.meta.get(MARK)
    return marks[0].op if marks else graph.sequence.get(node.meta.get("seq_nr", -1))


def op_near(graph: Traced, node: fx.Node) -> int | None:
    """The op that `node` or its nearest user belongs to: sums of gradients belong to none.

    Of what only leaves the graph, such as the sum of a shared weight's gradients, the op of what
    it was computed from.
    """
    waiting = deque([node])
    seen = {node}
    while waiting:
        each = waiting.popleft()
        found = op_of(graph, each)
        if found is not None:
            return found
        new = [user for user in each.users if user not in seen]
        seen.update(new)
        waiting.extend(new)
    sources = (op_of(graph, source) for source in node.all_input_nodes)
    return next((number for number in sources if number is not None), None)


def calls_of(
    step: Step,
    traced: Traced,
    kernel_of: Mapping[int, str],
    kernels: Mapping[str, Sequence[int]],
) -> list[Call | None]:
    """Number the ops of a graph as they are in an eager run, and tell the archive of them all.

    An op that is not materialised is told of, too, with the kernel that it was fused into and
    the other ops inside of that. None stands for what is not selected.
    """
    names = _names(step, traced)
    calls: list[Call | None] = []
    for number, (op, name) in enumerate(zip(traced.ops, names, strict=True)):
        if name is None:
            calls.append(None)
            continue
        kernel = kernel_of.get(number, "")
        inside = [names[other] for other in kernels.get(kernel, ()) if other != number]
        origins = tuple(f"{other[1]}#{other[2]}" for other in inside if other is not None)
        kernel = kernel.partition("#")[0] or NO_KERNEL
        owner, op_name, count = name
        target, line = op.function.target, op.place.line
        calls.append(owner.call(op_name, count, target, "", line, origins, kernel))
    return calls


def _names(step: Step, traced: Traced) -> list[tuple[Step, str, int] | None]:
    """The step, op and number of each op of a graph; None where it is not selected."""
    spots = graph_capture.Spots(step)
    names: list[tuple[Step, str, int] | None] = []
    for op in traced.ops:
        owner = spots.step_of(op.place)
        counted = owner.count(op.function) if owner is not None else None
        names.append((owner, *counted) if owner is not None and counted is not None else None)
    spots.leave()
    return names
