"""Dynamo's graph: the module that each node stands in, and those of them that are ops, by name."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.record import NO_KERNEL, Call
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.recording.calls import arguments_of, traced_line
from dumpcmp.taps.recording.functions import (
    NO_OP,
    Function,
    attribute_of,
    function_of,
    in_order,
)
from dumpcmp.taps.recording.grafts import GRAFTED
from dumpcmp.taps.recording.models import FunctionModel, Model, Scope
from dumpcmp.taps.recording.step import Step

_FIRST_SIZE = -(1 << 61)  # numbers below it stand for sizes that vary, until they have words
_UNKNOWN_SIZE = json.dumps({"object": "torch.SymInt"})
_BODY_RUNNERS = ("tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint")


def runs_body(target: object) -> bool:
    """Whether `target` is called with a graph of its own: a checkpointed region."""
    return getattr(target, "__name__", "") in _BODY_RUNNERS


def body_of(node: fx.Node) -> fx.GraphModule | None:
    """The graph of the checkpointed region that `node` runs, if it runs one."""
    first = node.args[0] if node.args and runs_body(node.target) else None
    if not isinstance(first, fx.Node) or first.op != "get_attr":
        return None
    body = getattr(node.graph.owning_module, str(first.target))
    return body if isinstance(body, fx.GraphModule) else None


@dataclass(frozen=True, slots=True)
class NodeHome:
    """Where a node stands: its module, as seen from the module that the graph began in."""

    path: str
    relative: bool
    instance: str  # tells two calls of one module apart: "id@1"
    line: str
    root: Callable[[], nn.Module | None] | None = None  # that a function calls
    root_instance: str = ""
    owner: str = ""  # the name of the root's model

    def under(self, base: str) -> str:
        """The module's path when the graph runs for the module `base`."""
        return f"{base}.{self.path}".strip(".") if self.relative else self.path


def homes_of(graph: fx.GraphModule, model: Model, base: str) -> dict[fx.Node, NodeHome]:
    """The homes of the nodes of `graph`, which was traced just now in the module at `base`.

    After a graph break one graph can serve several modules of a class, so that a path is kept
    relative to the module that was being called.
    """
    return {node: _home(node, base, model) for node in graph.graph.nodes}


def _home(node: fx.Node, base: str, model: Model) -> NodeHome:
    stack = node.meta.get("nn_module_stack") or {}
    line = traced_line(node.meta.get("stack_trace"))
    if not stack:
        return NodeHome("", True, "", line)
    if isinstance(model, FunctionModel):
        return _home_in_function(stack, line, model)
    instance = next(reversed(stack))
    path = model.paths.get(_id_of(instance), base)
    if path == base:
        return NodeHome("", True, "", line)
    inside = not base or path.startswith(base + ".")
    return NodeHome(path.removeprefix(base).lstrip(".") if inside else path, inside, instance, line)


def _home_in_function(stack: dict[str, Any], line: str, function: FunctionModel) -> NodeHome:
    """The home of a node that a compiled function's module computes; its root begins a step."""
    outermost, instance = next(iter(stack)), next(reversed(stack))
    root = function.root_with(_id_of(outermost))
    module = root()
    assert module is not None
    model = function.model_of(module)
    path = model.paths.get(_id_of(instance), "")
    return NodeHome(path, False, instance if path else "", line, root, outermost, model.name)


def _id_of(instance: str) -> int:
    return int(instance.partition("@")[0])


class Spots:
    """The steps and scopes of the module calls that one run of a graph stands for."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.base = step.scopes.here
        self._scopes: dict[str, Scope] = {}
        self._steps: dict[str, Step | None] = {}

    def step_of(self, home: NodeHome) -> Step | None:
        """The step of an op at `home`, with its scope set; None where it is not selected."""
        step = self._step(home)
        if step is not None:
            base = self.base if step is self.step else step.scopes.root
            step.stand_in(self._scope(step, home, base), home.line)
        return step

    def leave(self) -> None:
        for step in self._steps.values():
            if step is not None:
                step.stand_in(step.scopes.root)
        self.step.stand_in(self.base)

    def _step(self, home: NodeHome) -> Step | None:
        if home.root is None:
            return self.step
        if home.root_instance not in self._steps:
            root = home.root()
            inner = self.step.begin_inner(root) if root is not None else None
            self._steps[home.root_instance] = inner
        return self._steps[home.root_instance]

    def _scope(self, step: Step, home: NodeHome, base: Scope) -> Scope:
        if not home.instance:
            return base
        if home.instance not in self._scopes:
            self._scopes[home.instance] = step.scopes.next_of(home.under(base.path))
            step.reach(home.under(base.path))
        return self._scopes[home.instance]


def results_of(graph: fx.Graph) -> list[tuple[int, fx.Node]]:
    """The nodes among what `graph` gives out, by position."""
    results: Any = graph.output_node().args[0]
    return [(i, node) for i, node in enumerate(results) if isinstance(node, fx.Node)]


class Mark(NamedTuple):
    """Says of a node that its value is this slot of this op."""

    op: int  # its position among the ops of dynamo's graph
    slot: Slot


RunAgain = Callable[[list[Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class GraphOp:
    """One node of dynamo's graph that is an op: the function, and the module that it stands in."""

    node: str
    function: Function
    home: NodeHome
    arguments: str = ""  # as JSON, with slots in place of tensors
    sizes: tuple[tuple[str, Any], ...] = ()  # words in `arguments`, and the symbols they stand for

    def told(self, known: Mapping[str, int]) -> str:
        """Its arguments in a run that has these numbers for symbols."""
        text = self.arguments
        for word, expression in self.sizes:
            free = expression.free_symbols
            found = expression.subs({s: known[s.name] for s in free if s.name in known})
            is_known = not found.free_symbols
            text = text.replace(word, str(int(found)) if is_known else _UNKNOWN_SIZE)
        return text


@dataclass(frozen=True, slots=True)
class Traced:
    """One graph of dynamo."""

    ops: Sequence[GraphOp]
    index: dict[str, int]  # node of dynamo's graph -> position in `ops`
    digest: str  # by which generated code refers to it
    bodies: dict[fx.Graph, str]  # of checkpointed regions: what stands before their nodes' names
    sequence: dict[int, int] = field(default_factory=dict)  # autograd's number -> op
    grafted: dict[str, Mark] = field(default_factory=dict)  # node that gives another value -> whose
    again: dict[int, RunAgain] = field(default_factory=dict)  # what runs such an op in float64

    def number_of(self, node: fx.Node) -> int | None:
        """The op that `node` of dynamo's graph, or of a body in it, is."""
        return self.index.get(self.bodies.get(node.graph, "") + node.name)


def named(graph: fx.GraphModule, model: Model, base: str) -> Traced:
    """The ops of dynamo's `graph`, which was traced in a call of the module `base` of `model`."""
    bodies: dict[fx.Graph, str] = {}
    ops = list(_ops_of(graph, model, base, bodies))
    written = [
        (op.node, op.function.name, op.home.path, op.home.relative, op.home.owner, op.arguments)
        for op in ops
    ]
    digest = hashlib.sha256(json.dumps(written).encode()).hexdigest()[:32]
    return Traced(ops, {op.node: number for number, op in enumerate(ops)}, digest, bodies)


def _ops_of(
    graph: fx.GraphModule, model: Model, base: str, bodies: dict[fx.Graph, str], prefix: str = ""
) -> Iterator[GraphOp]:
    """The ops of `graph` in order; those of a checkpointed region stand in its place."""
    homes = homes_of(graph, model, base)
    for node in graph.graph.nodes:
        body = body_of(node)
        if body is not None:
            bodies[body.graph] = f"{prefix}{node.name}."
            yield from _ops_of(body, model, base, bodies, bodies[body.graph])
        elif (function := _function(node)).name:
            _, text, sizes = arguments_in(node, function)
            yield GraphOp(prefix + node.name, function, homes[node], text, sizes)


def arguments_in(
    node: fx.Node, function: Function
) -> tuple[list[tuple[str, fx.Node]], str, tuple[tuple[str, Any], ...]]:
    """The input slots of `node`, each with the node that gives it, and its arguments as JSON.

    Sizes that vary stand there as words, which come third with their expressions: to ask for
    their numbers would bind the graph to them. What else gives no tensor stands there as an
    object that is not known.
    """
    stood: list[tuple[Tensor, fx.Node]] = []
    sizes: list[Any] = []

    def stand_in(value: Any) -> Any:
        found = value.meta.get("example_value") if isinstance(value, fx.Node) else value
        if isinstance(found, torch.SymInt):
            sizes.append(found.node.expr)
            return _FIRST_SIZE - len(sizes)
        if isinstance(found, (torch.SymFloat, torch.SymBool)):
            return node
        if not isinstance(value, fx.Node):
            return value
        if not isinstance(found, Tensor):
            return node
        stood.append((torch.empty(0), value))
        return stood[-1][0]

    args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), stand_in)
    found, text = arguments_of(in_order(function, args), kwargs, function.positions)
    sources = {id(tensor): source for tensor, source in stood}
    words: list[tuple[str, Any]] = []
    for number, expression in enumerate(sizes, 1):
        word = json.dumps({"size": f"{number}: {expression}"})
        text = text.replace(str(_FIRST_SIZE - number), word)
        words.append((word, expression))
    return [(slot, sources[id(tensor)]) for slot, tensor in found], text, tuple(words)


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
    if not any(slots_of("", value) for value in values):
        return NO_OP
    function = function_of(node.target)
    return NO_OP if function.name == "from_local" else function  # a DTensor is made, not computed


def calls_of(
    step: Step,
    traced: Traced,
    kernel_of: Mapping[int, str],
    kernels: Mapping[str, Sequence[int]],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[Call | None]:
    """Number the ops of a graph as they are in an eager run, and tell the archive of them all.

    An op that is not materialised is told of, too, with the kernel that it was fused into and
    the other ops inside of that. None stands for what is not selected. `sizes` are the numbers of
    symbols in this run.
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
        if owner.grafts is not None and owner.grafts.hides(owner.number, op_name, count):
            calls.append(None)
            continue
        target = GRAFTED if owner.is_grafted(op_name, count) else op.function.target
        line = op.home.line
        calls.append(owner.call(op_name, count, target, op.told(sizes), line, origins, kernel))
    return calls


def _names(step: Step, traced: Traced) -> list[tuple[Step, str, int] | None]:
    """The step, op and number of each op of a graph; None where it is not selected."""
    spots = Spots(step)
    names: list[tuple[Step, str, int] | None] = []
    for op in traced.ops:
        owner = spots.step_of(op.home)
        counted = owner.count(op.function) if owner is not None else None
        names.append((owner, *counted) if owner is not None and counted is not None else None)
    spots.leave()
    return names
