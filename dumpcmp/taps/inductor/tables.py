"""The table at the end of generated code: what its lines read, and what its twin must give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from dumpcmp.nouns.key import Slot
from dumpcmp.pytorch.graph_text import graph_text
from dumpcmp.taps.inductor.graph_values import GraphValue, read_value
from dumpcmp.taps.inductor.marks import MARK, Known, Marking
from dumpcmp.taps.inductor.pass_texts import PassTexts
from dumpcmp.taps.inductor.single_calls import has_single_calls
from dumpcmp.taps.inductor.views import Sizes, View, base_of, is_same, view_name, views_of
from dumpcmp.taps.inductor.written import Written
from dumpcmp.taps.modes.traced import Mark, Traced, results_of

SCHEMA = 18  # caches keep code with tables of different schemas apart
# Of the generated code: ours comes then.
ENDING = "\n\nfrom dumpcmp.taps.inductor.generated import TappedGraph"

TWIN = "# dumpcmp: a twin, which is no code of the program's\n"  # how the code of one begins
_TAP_LINE = re.compile(r"^\s*_dumpcmp\(.*\n", re.MULTILINE)

Reading = tuple[list[View], list[Mark]]  # which view of a buffer to take, and what it is


class TapLine(NamedTuple):
    """What one line of the tap reads."""

    kernel: str  # that has just computed it, and which call of that
    op: int | None  # that it belongs to
    name: str  # the same in the twin
    readings: list[Reading]


@dataclass(frozen=True, slots=True)
class TwinCode:
    """The same graph with every op's value stored; or the `problem` why there is none."""

    problem: str = ""
    code: str = ""
    lines: list[TapLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TapTable:
    """What generated code must know when it runs."""

    graph: str  # digest of dynamo's
    backward: bool
    lines: list[TapLine]
    inputs: list[tuple[int, list[Reading]]]  # arguments that are values of ops, by position
    outputs: list[tuple[int, Mark]]  # results that an op gave out, by position
    kernels: dict[str, list[int]]  # the ops inside
    proofs: dict[str, list[str]]  # what vouches for a kernel: names of lines
    computed: tuple[int, int]  # nodes whose value some kernel stores, of how many
    unwritten: list[int]  # results that are memory which nothing writes
    changed: list[int]  # arguments that the code writes to
    has_single_calls: bool  # of ops that must not be called again
    text: str  # the post-grad graph, readable
    symbols: list[tuple[str, int, int]]  # sizes that vary: argument, and dim of it (-1: itself)
    values: list[GraphValue]  # of dynamo's graph, stored or not; a backward's are its forward's
    stages: dict[str, str] = field(default_factory=dict)  # other texts of the graph, by what it is
    passes: str = ""  # texts of the graph after each pass that changed it, as `pass_texts.packed`
    twin: TwinCode | None = None

    def written(self) -> str:
        """The end of the generated code: this table, and a watch around the code's entry."""
        return (
            f"{ENDING}\n\n"
            f"_dumpcmp = TappedGraph(globals(), {json.dumps(asdict(self))!r})\n"
            "call = _dumpcmp.watching(call)\n"
        )


def read_table(text: str) -> TapTable:
    """The table that `TapTable.written` wrote down as JSON."""
    found = json.loads(text)
    twin = found["twin"]
    if twin is not None:
        found["twin"] = TwinCode(**twin | {"lines": _lines(twin["lines"])})
    found["lines"] = _lines(found["lines"])
    found["inputs"] = [(position, _readings(listed)) for position, listed in found["inputs"]]
    found["values"] = [read_value(listed) for listed in found["values"]]
    found["outputs"] = [(position, _mark(listed)) for position, listed in found["outputs"]]
    return TapTable(**found)


def _lines(listed: Iterable[Any]) -> list[TapLine]:
    return [TapLine(kernel, op, name, _readings(read)) for kernel, op, name, read in listed]


def _readings(listed: Iterable[Any]) -> list[Reading]:
    return [(views, [_mark(mark) for mark in marks]) for views, marks in listed]


def _mark(listed: Sequence[Any]) -> Mark:
    return Mark(listed[0], Slot(listed[1]))


def marks_in(readings: Iterable[Reading]) -> Iterator[Mark]:
    """All Marks of what is read."""
    return (mark for _, marks in readings for mark in marks)


def kernel_of_each_op(table: TapTable) -> dict[int, str]:
    """The kernel that stores an op's output, or else the first that the op is inside of."""
    found: dict[int, str] = {}
    for line in table.lines:
        for mark in marks_in(line.readings):
            if mark.slot.is_output:
                found.setdefault(mark.op, line.kernel)
    for kernel, ops in table.kernels.items():
        for op in ops:
            found.setdefault(op, kernel)
    return found


class Tapped(NamedTuple):
    """A value that a line of the tap reads, while the code is generated."""

    value: Written
    op: int | None
    readings: list[Reading]


def lines_of(tapped: Sequence[Tapped]) -> list[TapLine]:
    """The lines that read what is `tapped`, each with a name of its own, the same in a twin.

    Of several with the same node, the one that was lowered first comes first.
    """
    values = [each.value for each in tapped]
    lowered = sorted(values, key=lambda v: (v.name, len(v.variable), v.variable))
    groups = groupby(lowered, key=lambda v: v.name)
    names = {id(v): f"{name}#{n}" for name, group in groups for n, v in enumerate(group)}
    return [TapLine(v.kernel, op, names[id(v)], readings) for v, op, readings in tapped]


class Compilation:
    """One graph of dynamo on its way through Inductor."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.marks = Marking(traced)
        self.before_passes: list[Known] = []  # marked nodes of the post-grad graph
        self.stages: dict[str, str] = {}  # texts of the graph before Inductor changed it
        self.passes = PassTexts(self.stages)
        self.begin_code()

    def begin_code(self) -> None:
        """Forget what was written: the code that comes now is another one."""
        self.tapped: list[Tapped] = []
        self.kernels: dict[str, set[int]] = {}  # kernel -> the ops inside
        self._kernels_of: dict[fx.Node, dict[str, None]] = {}  # those that compute a node

    def note_kernel(self, value: Written) -> None:
        """A kernel has computed `value`, and all nodes on the way to it."""
        for node in value.origins:
            self._kernels_of.setdefault(node, {})[value.kernel] = None

    def kernels_of(self) -> dict[fx.Node, Iterable[str]]:
        """The kernel that stores a node's value, or else those that compute it on their way."""
        found: dict[fx.Node, Iterable[str]] = dict(self._kernels_of)
        return found | {v.origin: [v.kernel] for v, _, _ in self.tapped if v.origin is not None}


def table_of(now: Compilation, lowered: Any) -> TapTable:
    """What the code that was generated for a `lowered` graph must know when it runs."""
    module, backward = lowered.module, bool(lowered.is_backward)
    graph = module.graph
    captured = {each.value.name for each in now.tapped if each.readings}
    computed = [n for n in graph.nodes if is_computed(n) and not _is_given(n)]
    lines = lines_of(now.tapped)
    return TapTable(
        now.traced.digest,
        backward,
        lines,
        inputs=list(_inputs(graph, backward)),
        outputs=list(_outputs(graph)),
        kernels={kernel: sorted(ops) for kernel, ops in now.kernels.items()},
        proofs=_proofs(now.tapped, lines),
        computed=(sum(n.name in captured for n in computed), len(computed)),
        unwritten=list(_unwritten(graph)),
        changed=sorted({*lowered.mutated_input_idxs, *(lowered.bw_donated_idxs or ())}),
        has_single_calls=has_single_calls(graph),
        text=graph_text(module, strides=True),
        symbols=[] if backward else list(_symbols(graph)),
        values=[] if backward else now.marks.values(),
        stages={**now.stages, "nodes": _node_lines(now, graph)},
        passes=now.passes.taken(),
    )


def _node_lines(now: Compilation, graph: fx.Graph) -> str:
    """A line a node of the final graph: its name, its kernel, or several, and the user's line."""
    told, kernels = ["node\tkernel\tsource"], now.kernels_of()
    for node in graph.nodes:
        if node.op == "call_function":
            told.append(f"{node.name}\t{', '.join(kernels.get(node, ()))}\t{_source_of(node)}")
    return "\n".join(told) + "\n"


def _source_of(node: fx.Node) -> str:
    """The innermost line of the program that a node comes from: ``model.py:31``."""
    found = _TRACED_LINE.findall(node.meta.get("stack_trace") or "")
    return f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""


_TRACED_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def readings_of(node: fx.Node, sizes: Sizes, backward: bool) -> list[Reading]:
    """The Marks of `node` and of the views of it, each with the views that lead there."""
    while is_same(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = []
    for view, views in views_of(node, sizes):
        marks = [m for m in view.meta.get(MARK, ()) if m.slot.is_gradient == backward]
        if marks:
            found.append((views, list(dict.fromkeys(marks))))
    return found


def _inputs(graph: fx.Graph, backward: bool) -> Iterator[tuple[int, list[Reading]]]:
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        sizes: Sizes = []
        readings = readings_of(node, sizes, backward)
        if sizes:  # only code that is written after a kernel can compute them
            readings = [(views, marks) for views, marks in readings if not views]
        if readings:
            yield position, readings


def _symbols(graph: fx.Graph) -> Iterator[tuple[str, int, int]]:
    """Where the numbers of symbols can be read when the graph runs."""
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, Tensor) else ((-1, value),)
        for dim, size in sizes:
            if isinstance(size, torch.SymInt) and getattr(size.node.expr, "is_symbol", False):
                yield str(size.node.expr), position, dim


def sizes_in(symbols: Iterable[tuple[str, int, int]], inputs: Sequence[Any]) -> dict[str, int]:
    """The numbers of symbols in a run that is given `inputs`."""
    return {
        name: int(inputs[position] if dim < 0 else inputs[position].shape[dim])
        for name, position, dim in symbols
    }


def _outputs(graph: fx.Graph) -> Iterator[tuple[int, Mark]]:
    for position, node in results_of(graph):
        given = [mark for mark in node.meta.get(MARK, ()) if mark.slot.is_output]
        if given:
            yield position, given[0]


def _unwritten(graph: fx.Graph) -> Iterator[int]:
    """Which outputs are memory that nothing writes: attention's seeds where nothing is dropped."""
    for position, node in results_of(graph):
        parent = node.args[0] if node.args else None
        if not isinstance(parent, fx.Node) or "scaled_dot_product" not in str(parent.target):
            continue
        value = node.meta.get("val")
        drops = any(type(argument) is float and argument > 0 for argument in parent.args[:8])
        if isinstance(value, Tensor) and not value.is_floating_point() and not drops:
            yield position


def _proofs(tapped: Sequence[Tapped], lines: Sequence[TapLine]) -> dict[str, list[str]]:
    """What vouches for each kernel: the values that it stores.

    A step on the way may have been written over in place when it is read, so such a value
    vouches only for a kernel that stores nothing else.
    """
    certain, others = dict[str, list[str]](), dict[str, list[str]]()
    for each, line in zip(tapped, lines, strict=True):
        (certain if each.value.origin else others).setdefault(line.kernel, []).append(line.name)
    return others | certain


def own_code(code: str) -> str | None:
    """Generated code without what the tap added; None of a twin: the program has none."""
    return None if code.startswith(TWIN) else _TAP_LINE.sub("", code.partition(ENDING)[0])


def bases_of(nodes: fx.Graph) -> Iterable[fx.Node]:
    """The nodes that compute values of ops."""
    return {base_of(node): None for node in nodes.nodes if node.meta.get(MARK)}


def hidden(nodes: fx.Graph, stored: Set[str]) -> Iterable[fx.Node]:
    """The nodes that compute values of ops which are not `stored`."""
    return [node for node in bases_of(nodes) if node.name not in stored and is_computed(node)]


def is_computed(node: fx.Node) -> bool:
    """Whether `node` computes a tensor: no input, no view."""
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and not view_name(node)


def _is_given(node: fx.Node) -> bool:
    """Whether Inductor has nothing to compute for `node`.

    It writes constants and counters into the code of what uses them, and copies back into an
    argument what it has computed before.
    """
    return not node.all_input_nodes or node.target is torch.ops.aten.copy_.default
