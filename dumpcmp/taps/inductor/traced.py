"""A graph of dynamo, its ops by name, and which of them a node of a later graph belongs to."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from dumpcmp.taps.inductor.replaced import Known
from dumpcmp.taps.inductor.views import Step
from dumpcmp.taps.modes import graph as graph_capture
from dumpcmp.taps.recording import arguments as slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.naming import NO_OP, Function, attribute_of, function_of

Place = tuple[int, str]  # which op of the graph, and which slot of it
Reading = tuple[list[Step], list[Place]]  # what to do with a buffer, and where that is recorded
MARK = "dumpcmp"  # in Node.meta: the places whose value the node is


@dataclass(frozen=True, slots=True)
class GraphOp:
    """One node of dynamo's graph that is an op: the function, and the module that it stands in."""

    node: str
    function: Function
    place: graph_capture.Place


@dataclass(frozen=True, slots=True)
class Buffer:
    """What one line of the tap reads."""

    kernel: str  # and which call of it
    name: str  # of the node whose value it is, or of all that are computed on the way to it
    certain: bool  # whether it is a node's value, and not a step on the way
    variable: str
    op: int | None  # which computes it
    readings: list[Reading]


@dataclass(slots=True, weakref_slot=True)
class Traced:
    """One graph of dynamo, and what was learnt while it was traced and compiled."""

    ops: Sequence[GraphOp]
    index: dict[str, int]  # node of dynamo's graph -> position in `ops`
    digest: str
    bodies: dict[fx.Graph, str] = field(default_factory=dict)  # of checkpoints: prefix of names
    parameters: set[Any] = field(default_factory=set)  # traced ones: their gradients are not ours
    given: set[Any] = field(default_factory=set)  # arguments, as autograd knows them
    gradients: dict[Any, list[Place]] = field(default_factory=dict)
    sequence: dict[int, int] = field(default_factory=dict)  # autograd's number -> op
    began: int = 0  # autograd's number when the present node began
    arguments: tuple[Any, ...] = ()  # of the present node
    pending: deque[Any] = field(default_factory=lambda: deque(maxlen=256))  # forward runs
    known: list[tuple[Known, list[Place]]] = field(default_factory=list)  # before the passes
    taps: list[Buffer] = field(default_factory=list)
    kernels: dict[str, set[int]] = field(default_factory=dict)  # kernel -> the ops inside

    def name_of(self, node: fx.Node) -> str:
        """What `node` of dynamo's graph, or of a body in it, is called in `index`."""
        return self.bodies.get(node.graph, "") + node.name


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
    places = graph_capture.places_of(graph, model, base)
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


def op_near(graph: Traced, node: fx.Node) -> int | None:
    """The op that the nearest user of `node` belongs to: sums of gradients belong to none.

    Of what only leaves the graph, such as the sum of a shared weight's gradients, the op of what
    it was computed from.
    """
    waiting, seen = deque([node]), {node}
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
    marks = node.meta.get(MARK)
    return marks[0][0] if marks else graph.sequence.get(node.meta.get("seq_nr", -1))
