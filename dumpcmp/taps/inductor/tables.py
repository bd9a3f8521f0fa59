"""The table at the end of generated code: what its lines read, and what its twin must give."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx

from dumpcmp.taps.inductor.traced import MARK, Buffer, Place, Reading, Traced
from dumpcmp.taps.inductor.views import Sizes, base_of, is_same, view_name, views_of

SCHEMA = 8  # caches keep code with tables of different schemas apart
# Of the generated code: ours comes then.
ENDING = "\n\nfrom dumpcmp.taps.inductor.generated import tapped_graph"

_REPEATABLE = ("", "aten", "prims", "inductor", "inductor_prims")  # "": Python's own operators
_SPARE_LINE = re.compile(r"^\s*(_dumpcmp\(.*|#.*|)\n", re.MULTILINE)  # the tap's, and comments


def readings_of(node: fx.Node, sizes: Sizes, backward: bool) -> list[Reading]:
    """The places whose value is `node` or a view of it, each with the steps that lead there."""
    while is_same(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = []
    for view, steps in views_of(node, sizes):
        places = [p for p in view.meta.get(MARK, ()) if p[1].startswith("grad_") == backward]
        if places:
            found.append((steps, list(dict.fromkeys(places))))
    return found


def table_of(graph: Traced, module: fx.GraphModule, code: str, backward: bool) -> dict[str, Any]:
    """What the code that was generated for post-grad graph `module` must know when it runs."""
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
        marks = node.meta.get(MARK, ()) if isinstance(node, fx.Node) else ()
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
        readings = readings_of(node, sizes, backward)
        if sizes:  # only code that is written after a kernel can compute them
            readings = [(steps, places) for steps, places in readings if not steps]
        if readings:
            yield position, readings


def code_digest(code: str) -> str:
    """Digest of generated code without the lines of the tap: the same for untapped code.

    Comments are left out, too, since they count the graphs of the process.
    """
    return hashlib.sha256(_SPARE_LINE.sub("", code).encode()).hexdigest()[:32]


def numbered(buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, str]]:
    """Each of `buffers` with a name of its own, the same in a twin.

    Of several with the same name, the one that was lowered first comes first.
    """
    lowered = sorted(buffers, key=lambda b: (b.name, len(b.variable), b.variable))
    groups = groupby(lowered, key=lambda b: b.name)
    names = {id(b): f"{name}#{n}" for name, group in groups for n, b in enumerate(group)}
    yield from ((buffer, names[id(buffer)]) for buffer in buffers)


def proofs_of(buffers: Sequence[Buffer]) -> dict[str, list[str]]:
    """What vouches for each kernel: the values that it stores.

    A step on the way may have been written over in place when it is read, so such a buffer
    vouches only for a kernel that stores nothing else.
    """
    certain, others = dict[str, list[str]](), dict[str, list[str]]()
    for buffer, name in numbered(buffers):
        (certain if buffer.certain else others).setdefault(buffer.kernel, []).append(name)
    return others | certain


def bases_of(nodes: fx.Graph) -> Iterable[fx.Node]:
    """The nodes that compute values of ops."""
    return {base_of(node): None for node in nodes.nodes if node.meta.get(MARK)}


def hidden(nodes: fx.Graph, stored: Set[str]) -> Iterable[fx.Node]:
    """The nodes that compute values of ops which are not `stored`."""
    return [node for node in bases_of(nodes) if node.name not in stored and is_computed(node)]


def unrepeatable(nodes: fx.Graph) -> str:
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
