"""Puts other values in place of what ops of a graph give, before Inductor compiles it.

Behind each such op stands a call that no kernel takes in: what was fused around the op ends there,
and all that takes its result takes the other value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.op_names import writes_in_place
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.modes.traced import GraphOp, Mark, Traced
from dumpcmp.taps.recording.grafts import Grafts, wide

ValueHere = Callable[[Tensor, list[Tensor], str, int, str], Tensor | None]
_SCHEMA = "(Tensor own, Tensor[] given, str graph, int op, str slot) -> Tensor"
_value_here: ValueHere | None = None  # of the capture that runs


@cache
def _operator() -> Any:
    """The call that stands in graphs; torch learns of it when it is first needed."""

    def put(own: Tensor, given: list[Tensor], graph: str, op: int, slot: str) -> Tensor:
        found = None if _value_here is None else _value_here(own, given, graph, op, slot)
        return torch.empty_like(own).copy_(own if found is None else found)

    def remember(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.num_given = len(inputs[1])

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, [None] * ctx.num_given, None, None, None

    library: Any = torch.library
    made = library.custom_op("dumpcmp::graft", put, mutates_args=(), schema=_SCHEMA)
    made.register_fake(lambda own, *_: torch.empty_like(own))
    made.register_autograd(backward, setup_context=remember)
    return torch.ops.dumpcmp.graft.default


def give(value_here: ValueHere | None) -> None:
    """From now on `value_here` says what stands in the place of a result."""
    global _value_here
    _value_here = value_here


def put_in_graph(module: fx.GraphModule, traced: Traced, grafts: Grafts) -> None:
    """Put calls behind those ops of dynamo's graph whose results `grafts` may replace."""
    graphs = {prefix: graph for graph, prefix in traced.bodies.items()} | {"": module.graph}
    nodes = {f"{prefix}{n.name}": n for prefix, graph in graphs.items() for n in graph.nodes}
    for number, op in enumerate(traced.ops):
        path = op.home.path
        for slot in sorted(grafts.slots_of(path, op.function.name)):
            _put_behind(nodes[op.node], op, Mark(number, Slot(slot)), traced, grafts.in_float64)
    module.recompile()


def _put_behind(node: fx.Node, op: GraphOp, mark: Mark, traced: Traced, in_float64: bool) -> None:
    graph = node.graph
    is_written = op.function.returns_nothing or writes_in_place(op.function.target)
    if in_float64 and is_written:
        raise CaptureError(
            f"{op.function.target} changes what it takes: it cannot be run again behind itself",
            hint="leave --float64 out, or name the op that uses it",
        )
    given = list(_tensors(node)) if in_float64 else []
    traced.again[mark.op] = _again(node, given)
    source: Any = node.args[0] if op.function.returns_nothing else node
    with graph.inserting_after(node):
        source = _part(graph, source, mark.slot)
    place = (source, given, traced.digest, mark.op, str(mark.slot))
    with graph.inserting_after(node if source in node.all_input_nodes else source):
        made = graph.call_function(_operator(), place)
    made.meta = dict(source.meta)
    traced.grafted[made.name] = mark
    if is_written:
        with graph.inserting_after(made):
            graph.call_method("copy_", (source, made)).meta = dict(source.meta)
    elif source is node:
        node.replace_all_uses_with(made, lambda user: user is not made)
    else:
        for user in list(node.users):
            if user is not source and (user.target, user.args) == (source.target, source.args):
                user.replace_all_uses_with(made)


def _part(graph: fx.Graph, node: fx.Node, slot: Slot) -> fx.Node:
    """The node of the tensor that is this slot of what `node` gives."""
    value = node.meta.get("example_value")
    if isinstance(value, Tensor) and str(slot) == "output.0":
        return node
    name = slot.name or ""
    if not name.isdecimal() or not isinstance(value, tuple | list):
        raise CaptureError(
            f"the {slot} of {node.target} lies in an object: nothing can be put in its place",
            hint="name an op that takes it",
        )
    found = graph.call_function(operator.getitem, (node, int(name)))
    found.meta = {**node.meta, "example_value": value[int(name)]}
    return found


def _tensors(node: fx.Node) -> Iterator[fx.Node]:
    for each in node.all_input_nodes:
        if isinstance(each.meta.get("example_value"), Tensor):
            yield each


def _again(node: fx.Node, given: list[fx.Node]) -> Callable[[list[Tensor]], Mapping[str, Tensor]]:
    """What runs the op of `node` in float64 on what it was given."""
    positions = {each: position for position, each in enumerate(given)}
    args, kwargs = node.args, node.kwargs  # as they are now: later on they may be others
    method = getattr(torch.Tensor, str(node.target), None) if node.op == "call_method" else None
    function: Any = method or node.target

    def run(tensors: list[Tensor]) -> Mapping[str, Tensor]:
        def leaf(each: Any) -> Any:
            if not isinstance(each, fx.Node):
                return wide(each)
            return wide(tensors[positions[each]])

        mapped: Any = fx.node.map_aggregate((args, kwargs), leaf)
        with torch.no_grad():
            return dict(slots_of("output", function(*mapped[0], **mapped[1])))

    return run
