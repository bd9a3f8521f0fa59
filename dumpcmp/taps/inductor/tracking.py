"""Follows the ops of dynamo's graph into the code that Inductor generates for them."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdRef

from dumpcmp.taps.inductor.patches import (
    Again,
    Written,
    compile_context,
    is_backward,
    sequence_number,
    size_expression,
    traced_node,
)
from dumpcmp.taps.inductor.replaced import Known, kind_of, known_before, successor
from dumpcmp.taps.inductor.tables import (
    ENDING,
    bases_of,
    hidden,
    is_computed,
    numbered,
    proofs_of,
    readings_of,
    table_of,
    unrepeatable,
)
from dumpcmp.taps.inductor.traced import MARK, Buffer, Place, Traced, named, op_near, op_of
from dumpcmp.taps.inductor.views import Sizes
from dumpcmp.taps.recording import arguments as slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.naming import Function, in_order


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
            graph.parameters.add(WeakIdRef(result))
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
            marked = [n for n in nodes.nodes if n.meta.get(MARK)]
            graph.known = [(known_before(n), n.meta[MARK]) for n in marked]

    def realized(self, graph: fx.Graph) -> Iterable[fx.Node]:
        """The nodes that must be materialised: of ops with `realize`, all without fusion."""
        self._restore(graph)
        if self.unfused:
            yield from (n for n in graph.nodes if is_computed(n))
        elif self.realize:
            yield from bases_of(graph)

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
                marks = heir.meta.setdefault(MARK, [])
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
            readings, op = readings_of(origin, sizes, is_backward()), op_of(graph, origin)
        if origin is not None and self.unfused and not readings:
            slot = "grad_inner" if is_backward() else "inner"
            near = op if op is not None else op_near(graph, origin)
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
        table = table_of(graph, module, code, is_backward())
        stored, proofs = {buffer.name for buffer in graph.taps}, proofs_of(graph.taps)
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
        problem = unrepeatable(nodes)
        if problem:
            return {"problem": problem}
        try:
            twin = again(hidden(nodes, stored))
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


def _inputs_of(function: Function, args: tuple[Any, ...], kwargs: Any) -> slots.Slots:
    """The input slots; symbolic sizes are left out, since to read one would fix it."""
    symbolic = (torch.SymInt, torch.SymFloat)
    args, kwargs = pytree.tree_map_only(symbolic, lambda _: 0, (args, kwargs))
    return slots.arguments_of(args, kwargs, function.positions)[0]


def _mark_all(graph: Traced, number: int, found: slots.Slots) -> None:
    """Mark the traced nodes of the tensors in `found` as slots of op `number`."""
    for slot, tensor in found:
        _mark(tensor, [(number, slot)])
        if tensor.requires_grad and WeakIdRef(tensor) not in graph.parameters:
            _watch_gradient(graph, tensor, (number, f"grad_{slot}"))


def _mark(tensor: Tensor, places: Iterable[Place]) -> None:
    node = traced_node(tensor)
    if node is not None:
        node.meta.setdefault(MARK, []).extend(places)


def _differentiated(tensor: Tensor) -> Any:
    """What `tensor` is to autograd: what an in-place op makes of it is another one.

    AOTAutograd traces a graph more than once; the id of a tensor that is gone may come again.
    """
    made_by = tensor.grad_fn
    return WeakIdRef(tensor) if made_by is None else (made_by._sequence_nr(), tensor.output_nr)


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


def _rewritten(graph: Traced, known: Known, places: list[Place], nodes: fx.Graph) -> fx.Node | None:
    """The one new node that says it was made of the op whose node vanished, and is its result."""
    ops = {op for op, slot in places if slot.startswith("output")}
    found = [
        node
        for node in nodes.nodes
        if not node.meta.get(MARK) and kind_of(node) == known.kind and op_of(graph, node) in ops
    ]
    results = [node for node in found if not any(node in other.all_input_nodes for other in found)]
    return results[0] if len(results) == 1 else None
