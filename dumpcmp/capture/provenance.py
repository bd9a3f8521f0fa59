"""Follows the ops of dynamo's graph into the code that Inductor generates for them."""

from __future__ import annotations

import hashlib
import json
import operator
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from dumpcmp.capture import graph as graph_capture
from dumpcmp.capture import slots
from dumpcmp.capture.inductor_names import (
    Again,
    Written,
    compile_context,
    is_backward,
    sequence_number,
    size_expression,
    traced_node,
)
from dumpcmp.capture.models import Model
from dumpcmp.capture.names import NO_OP, Function, attribute_of, function_of, in_order
from dumpcmp.capture.replaced import Known, kind_of, known_before, successor
from dumpcmp.capture.views import Sizes, Step, base_of, is_same, view_name, views_of

Place = tuple[int, str]  # which op of the graph, and which slot of it
Reading = tuple[list[Step], list[Place]]  # what to do with a buffer, and where that is recorded
SCHEMA = 7  # of the table in generated code; caches keep code of different schemas apart

ENDING = "\n\nfrom dumpcmp.capture.tapped import tapped_graph"  # of the generated code: then ours

_REPEATABLE = ("", "aten", "prims", "inductor", "inductor_prims")  # "": Python's own operators
_MARK = "dumpcmp"  # in Node.meta: the places whose value the node is
_SPARE_LINE = re.compile(r"^\s*(_dumpcmp\(.*|#.*|)\n", re.MULTILINE)  # the tap's, and comments


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
    parameters: set[int] = field(default_factory=set)  # traced ones: their gradients are not ours
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


class Provenance:
    """Watches compilations: marks the nodes that are values of ops, and taps their buffers."""

    def __init__(
        self,
        where: Callable[[], tuple[Model, str] | None],
        *,
        tapped: bool = True,
        unfused: bool = False,
        realize: bool = False,
        twin: bool = False,
    ) -> None:
        self.quietly: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run
        self._where = where  # the model that runs now, and the module of it that is being called
        self.known: dict[str, Traced] = {}  # by digest, which generated code refers to
        self.tapped = tapped
        self.unfused = unfused
        self.realize = realize
        self.twin = twin and tapped
        self._graphs: weakref.WeakKeyDictionary[object, Traced] = weakref.WeakKeyDictionary()

    def _graph(self) -> Traced | None:
        context = compile_context()
        return None if context is None else self._graphs.get(context)

    def identity(self) -> str:
        """What tells the graph in compilation from others with the same code."""
        graph = self._graph()
        return "" if graph is None else graph.digest

    # While AOTAutograd traces dynamo's graph

    def wants(self) -> bool:
        """Whether what is about to be compiled belongs to a model that is captured."""
        return self._where() is not None

    def compiling(self, graph: fx.GraphModule) -> None:
        """Name the ops of dynamo's `graph`."""
        context, where = compile_context(), self._where()
        if context is not None and where is not None and isinstance(graph, fx.GraphModule):
            traced = named(graph, *where)
            self._graphs[context] = self.known[traced.digest] = traced

    def compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What is run in place of `run`: the same, with nothing recorded but by the tap."""
        return self.quietly(run)

    def is_body(self, nodes: fx.Graph) -> bool:
        """Whether `nodes` are those of a checkpointed region in the graph being traced."""
        graph = self._graph()
        return graph is not None and nodes in graph.bodies

    def tracing(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """Mark the inputs of `node`, before it may change them in place."""
        graph = self._graph()
        if graph is None or graph.name_of(node) not in graph.index:
            return
        number = graph.index[graph.name_of(node)]
        graph.began = sequence_number()
        function = graph.ops[number].function
        graph.arguments = in_order(function, args)
        _mark_all(graph, number, _inputs_of(function, graph.arguments, kwargs))

    def traced(self, node: fx.Node, result: object) -> None:
        """Mark the outputs of `node`, and have their gradients marked when they are traced."""
        graph = self._graph()
        if graph is not None and isinstance(node.meta.get("example_value"), nn.Parameter):
            graph.parameters.add(id(result))
        elif graph is not None and node.op == "placeholder" and isinstance(result, Tensor):
            graph.given.add(_differentiated(result))
        if graph is None or graph.name_of(node) not in graph.index:
            return
        number = graph.index[graph.name_of(node)]
        for sequence in range(graph.began, sequence_number()):
            graph.sequence[sequence] = number
        given = graph.arguments[0] if graph.ops[number].function.returns_nothing else result
        _mark_all(graph, number, slots.slots_of("output", given))

    # While Inductor rewrites the graph and generates code

    def rewriting(self, nodes: fx.Graph) -> None:
        """Remember the marked nodes of the post-grad graph, before passes change it."""
        graph = self._graph()
        if graph is not None:
            marked = [n for n in nodes.nodes if n.meta.get(_MARK)]
            graph.known = [(known_before(n), n.meta[_MARK]) for n in marked]

    def realized(self, graph: fx.Graph) -> Iterable[fx.Node]:
        """The nodes that must be materialised: of ops with `realize`, all without fusion."""
        self._restore(graph)
        if self.unfused:
            yield from (n for n in graph.nodes if is_computed(n))
        elif self.realize:
            yield from _bases(graph)

    def _restore(self, nodes: fx.Graph) -> None:
        """Give the marks of nodes that passes removed to what took their place."""
        graph = self._graph()
        if graph is None:
            return
        present = {node.name: node for node in nodes.nodes}
        for known, places in graph.known:
            if known.name in present:
                continue
            heir = _rewritten(graph, known, places, nodes) or successor(known, present)
            if heir is not None:
                marks = heir.meta.setdefault(_MARK, [])
                marks += [place for place in places if place not in marks]

    def written(self, values: Sequence[Written]) -> list[str]:
        """The lines that read those of `values` that some op is waiting for."""
        graph = self._graph()
        if graph is None:
            return []
        for value in values:
            inside = (op_of(graph, node) for node in value.origins)
            graph.kernels.setdefault(value.kernel, set()).update(n for n in inside if n is not None)
        if not self.tapped:
            return []
        return [line for value in values if value.alive for line in self._lines(graph, value)]

    def _lines(self, graph: Traced, value: Written) -> Iterator[str]:
        sizes: Sizes = []
        readings, op, origin = [], None, value.origin
        if origin is not None:
            readings, op = _readings(origin, sizes, is_backward()), op_of(graph, origin)
        if origin is not None and self.unfused and not readings:
            slot = "grad_inner" if is_backward() else "inner"
            near = op if op is not None else _op_near(graph, origin)
            readings = [] if near is None else [([], [(near, f"{slot}.{origin.name}")])]
        if readings or self.twin:  # what is no op's value still vouches for its kernel
            graph.taps.append(Buffer(value.kernel, *_name(value), value.variable, op, readings))
            given = "".join(f", {size_expression(size)}" for size in sizes)
            yield f"_dumpcmp({len(graph.taps) - 1}, {value.variable}{given})"

    def generated(self, module: fx.GraphModule, code: str, again: Again) -> str:
        """The end of the generated code: the table of its taps, and a watch around its call."""
        graph = self._graph()
        if graph is None:
            return ""
        table = _table(graph, module, code, is_backward())
        stored, proofs = {buffer.name for buffer in graph.taps}, _proofs(graph.taps)
        graph.taps, graph.kernels = [], {}
        if self.twin:
            table["proofs"] = proofs
            table["twin"] = self._twin(graph, module.graph, again, stored)
        return (
            f"{ENDING}\n\n"
            f"_dumpcmp = tapped_graph(globals(), {json.dumps(table)!r})\n"
            "call = _dumpcmp.watching(call)\n"
        )

    def _twin(
        self, graph: Traced, nodes: fx.Graph, again: Again, stored: Set[str]
    ) -> dict[str, Any]:
        """The same graph with every op's value stored; or why there is none."""
        problem = _unrepeatable(nodes)
        if problem:
            return {"problem": problem}
        try:
            twin = again(_hidden(nodes, stored))
        except Exception as error:  # whatever Inductor raises: the program runs without a twin
            return {"problem": f"it cannot be compiled: {type(error).__name__}: {error}"}
        finally:
            taps, graph.taps, graph.kernels = graph.taps, [], {}
        return {
            "problem": "",
            "code": twin.code,
            "changed": twin.changed,
            "taps": [[b.op, name, b.readings] for b, name in numbered(taps)],
        }


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


def _inputs_of(function: Function, args: tuple[Any, ...], kwargs: Any) -> slots.Slots:
    """The input slots; symbolic sizes are left out, since to read one would fix it."""
    symbolic = (torch.SymInt, torch.SymFloat)
    args, kwargs = pytree.tree_map_only(symbolic, lambda _: 0, (args, kwargs))
    return slots.arguments_of(args, kwargs, function.positions)[0]


def _mark_all(graph: Traced, number: int, found: slots.Slots) -> None:
    """Mark the traced nodes of the tensors in `found` as slots of op `number`."""
    for slot, tensor in found:
        _mark(tensor, [(number, slot)])
        if tensor.requires_grad and id(tensor) not in graph.parameters:
            _watch_gradient(graph, tensor, (number, f"grad_{slot}"))


def _mark(tensor: Tensor, places: Iterable[Place]) -> None:
    node = traced_node(tensor)
    if node is not None:
        node.meta.setdefault(_MARK, []).extend(places)


def _differentiated(tensor: Tensor) -> tuple[int, ...]:
    """What `tensor` is to autograd: what an in-place op makes of it is another one."""
    made_by = tensor.grad_fn
    return (id(tensor),) if made_by is None else (made_by._sequence_nr(), tensor.output_nr)


def _watch_gradient(graph: Traced, tensor: Tensor, place: Place) -> None:
    """Mark the gradient of `tensor` at `place`, too, once autograd traces it.

    Autograd runs the hook with the whole gradient, as it does on an eager run. To that of an
    argument of the graph others may add: it is watched when the graph runs.
    """
    which = _differentiated(tensor)
    if which in graph.given or traced_node(tensor) is None:
        return
    places = graph.gradients.get(which)
    if places is None:
        places = graph.gradients[which] = []
        hooked: Any = tensor
        hooked.register_hook(lambda gradient: _mark(gradient, places))
    places.append(place)


def _name(value: Written) -> tuple[str, bool]:
    if value.origin is not None:
        return value.origin.name, True
    return "+".join(sorted(node.name for node in value.origins)), False


def numbered(buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, str]]:
    """Each of `buffers` with a name of its own, the same in a twin.

    Of several with the same name, the one that was lowered first comes first.
    """
    lowered = sorted(buffers, key=lambda b: (b.name, len(b.variable), b.variable))
    groups = groupby(lowered, key=lambda b: b.name)
    names = {id(b): f"{name}#{n}" for name, group in groups for n, b in enumerate(group)}
    yield from ((buffer, names[id(buffer)]) for buffer in buffers)


def _proofs(buffers: Sequence[Buffer]) -> dict[str, list[str]]:
    """What vouches for each kernel: the values that it stores.

    A step on the way may have been written over in place when it is read, so such a buffer
    vouches only for a kernel that stores nothing else.
    """
    certain, others = dict[str, list[str]](), dict[str, list[str]]()
    for buffer, name in numbered(buffers):
        (certain if buffer.certain else others).setdefault(buffer.kernel, []).append(name)
    return others | certain


def _bases(nodes: fx.Graph) -> Iterable[fx.Node]:
    """The nodes that compute values of ops."""
    return {base_of(node): None for node in nodes.nodes if node.meta.get(_MARK)}


def _hidden(nodes: fx.Graph, stored: Set[str]) -> Iterable[fx.Node]:
    """The nodes that compute values of ops which are not `stored`."""
    return [node for node in _bases(nodes) if node.name not in stored and is_computed(node)]


def _unrepeatable(nodes: fx.Graph) -> str:
    """Why the graph cannot be run a second time unnoticed; empty if it can."""
    for node in nodes.nodes:
        space = getattr(node.target, "namespace", "")
        if node.op == "call_function" and space not in _REPEATABLE:
            return f"{node.target} may do more than compute"
    return ""


def is_computed(node: fx.Node) -> bool:
    """Whether `node` computes a tensor: no input, no view."""
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and not view_name(node)


def is_given(node: fx.Node) -> bool:
    """Whether Inductor has nothing to compute for `node`.

    It writes constants and counters into the code of what uses them, and copies back into an
    argument what it has computed before.
    """
    return not node.all_input_nodes or node.target is torch.ops.aten.copy_.default


def _op_near(graph: Traced, node: fx.Node) -> int | None:
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
    marks = node.meta.get(_MARK)
    return marks[0][0] if marks else graph.sequence.get(node.meta.get("seq_nr", -1))


def _rewritten(graph: Traced, known: Known, places: list[Place], nodes: fx.Graph) -> fx.Node | None:
    """The one new node that says it was made of the op whose node vanished, and is its result."""
    ops = {op for op, slot in places if slot.startswith("output")}
    found = [
        node
        for node in nodes.nodes
        if not node.meta.get(_MARK) and kind_of(node) == known.kind and op_of(graph, node) in ops
    ]
    results = [node for node in found if not any(node in other.all_input_nodes for other in found)]
    return results[0] if len(results) == 1 else None


def _readings(node: fx.Node, sizes: Sizes, backward: bool) -> list[Reading]:
    """The places whose value is `node` or a view of it, each with the steps that lead there."""
    while is_same(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = []
    for view, steps in views_of(node, sizes):
        places = [p for p in view.meta.get(_MARK, ()) if p[1].startswith("grad_") == backward]
        if places:
            found.append((steps, list(dict.fromkeys(places))))
    return found


def _table(graph: Traced, module: fx.GraphModule, code: str, backward: bool) -> dict[str, Any]:
    nodes = list(module.graph.nodes)
    captured = {buffer.name for buffer in graph.taps if buffer.readings}
    computed = [n for n in nodes if is_computed(n) and not is_given(n)]
    return {
        "schema": SCHEMA,
        "graph": graph.digest,
        "backward": backward,
        "taps": [[b.kernel, name, b.readings] for b, name in numbered(graph.taps)],
        "inputs": list(_inputs(nodes, backward)),
        "outputs": list(_outputs(nodes)),
        "kernels": {kernel: sorted(ops) for kernel, ops in graph.kernels.items()},
        "computed": [sum(n.name in captured for n in computed), len(computed)],
        "unwritten": list(_unwritten(nodes)),
        "digest": code_digest(code),
        "text": module.print_readable(print_output=False, include_stride=True),
    }


def _outputs(nodes: Sequence[fx.Node]) -> Iterator[tuple[int, Place]]:
    """Which results of the generated code an op gave out, by position."""
    (output,) = (node for node in nodes if node.op == "output")
    results: Any = output.args[0]
    for position, node in enumerate(results):
        marks = node.meta.get(_MARK, ()) if isinstance(node, fx.Node) else ()
        given = [place for place in marks if place[1].startswith("output")]
        if given:
            yield position, given[0]


def _unwritten(nodes: Sequence[fx.Node]) -> Iterator[int]:
    """Which outputs are memory that nothing writes: attention's seeds where nothing is dropped."""
    (output,) = (node for node in nodes if node.op == "output")
    results: Any = output.args[0]
    for position, node in enumerate(results):
        parent = node.args[0] if isinstance(node, fx.Node) and node.args else None
        if not isinstance(parent, fx.Node) or "scaled_dot_product" not in str(parent.target):
            continue
        value = node.meta.get("val")
        drops = any(type(argument) is float and argument > 0 for argument in parent.args[:8])
        if isinstance(value, Tensor) and not value.is_floating_point() and not drops:
            yield position


def _inputs(nodes: Sequence[fx.Node], backward: bool) -> Iterator[tuple[int, list[Reading]]]:
    """The arguments of the generated code that are values of ops, by position."""
    for position, node in enumerate(n for n in nodes if n.op == "placeholder"):
        sizes: Sizes = []
        readings = _readings(node, sizes, backward)
        if sizes:  # only code that is written after a kernel can compute them
            readings = [(steps, places) for steps, places in readings if not steps]
        if readings:
            yield position, readings


def code_digest(code: str) -> str:
    """Digest of generated code without the lines of the tap: the same for untapped code.

    Comments are left out, too, since they count the graphs of the process.
    """
    return hashlib.sha256(_SPARE_LINE.sub("", code).encode()).hexdigest()[:32]
