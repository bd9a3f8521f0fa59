"""Captures any torch.compile backend at the boundary of its graphs: what each takes and gives."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.op_names import writes_in_place
from dumpcmp.nouns.options import load
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.graph_text import graph_text
from dumpcmp.pytorch.inductor_options import check_inductor, inductor_with
from dumpcmp.taps.inductor.graph_values import GraphValue, RunsTold, merged
from dumpcmp.taps.modes.graph import GraphCapture, untraced
from dumpcmp.taps.modes.traced import Mark, Traced, arguments_in, calls_of, named, results_of
from dumpcmp.taps.recording.functions import Function
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step

Passing = list[tuple[int, list[Mark]]]  # position among the arguments or results, and its Marks

_WRITING = ("inplace", "out")  # arguments that have a function write to what it was given


class BoundaryCapture(GraphCapture):
    """Compiles every root module with `backend`, and records what enters and leaves its graphs.

    Values have the keys of the ops that take or give them, so that they pair with an FX or eager
    run. What the backend does inside a graph cannot be seen.
    """

    stands_for_eager = False  # but for what the backend would make of it

    def __init__(
        self,
        recorder: Recorder,
        roots: Collection[nn.Module] = (),
        *,
        backend: str | Callable[..., Any],
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(recorder, roots)
        self._name = backend if isinstance(backend, str) else backend.__name__
        inner = backend_named(backend) if isinstance(backend, str) else backend
        self._inner: Callable[..., Callable[..., Any]] = with_options(inner, backend, config)
        self._graphs = itertools.count()
        self._runs_told = RunsTold()

    def backend(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Compile `graph` with the backend; what is returned records its runs."""
        step = self.step
        if step is None:
            return self._inner(graph, example_inputs)
        name = f"graph-{next(self._graphs)} of {self._name}"
        file = f"{name.partition(' ')[0]}.txt"
        self.recorder.sink.text(step.model.name, file, graph_text(graph))
        traced = named(graph, step.model, step.scopes.here.path)
        taken, given, kept = entering(graph, traced), leaving(graph, traced), used_inside(graph)
        values = linked(graph, traced)
        run, ops = self._inner(graph, example_inputs), range(len(traced.ops))

        def recorded(*args: Any) -> Any:
            now = self.step
            if now is None:
                return run(*args)
            with self._muting():  # what it takes to record a value is no op of the program
                calls = calls_of(now, traced, dict.fromkeys(ops, name), {name: ops})
                _put(now, calls, taken, args)
                if values:
                    stored = [(name, marks) for _, marks in given]
                    self._runs_told.tell(now, calls, values, stored, -1)
                results = run(*args)
                _share(now, kept, results)
                _put(now, calls, given, results)
            return results

        return untraced(recorded)


def with_options(
    run: Callable[..., Any], backend: str | Callable[..., Any], config: Mapping[str, Any]
) -> Callable[..., Any]:
    """A backend that compiles with the options `config`, which Inductor has as its own.

    To others they are given as `options`, as torch.compile does.
    """
    if not config:
        return run
    if backend != "inductor":
        return partial(run, options=dict(config))
    check_inductor(config)

    def compiled(graph: fx.GraphModule, example_inputs: list[Any]) -> Any:
        with inductor_with(config):
            return run(graph, example_inputs)

    return compiled


def backend_named(name: str) -> Callable[..., Any]:
    """The torch.compile backend called `name`, or the callable ``pkg.mod:function``."""
    found: Callable[..., Any]
    if ":" in name:
        found = load("--backend", name)
        return found
    try:
        found = import_module("torch._dynamo").lookup_backend(name)
    except Exception as error:
        known = ", ".join(sorted(torch.compiler.list_backends(exclude_tags=())))
        raise CaptureError(
            f"--backend {name}: {type(error).__name__}: {error}",
            hint=f"give pkg.mod:function, or one of {known}",
        ) from error
    return found


def entering(graph: fx.GraphModule, traced: Traced) -> Passing:
    """The arguments of `graph` that ops of it take."""
    positions = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    found: dict[int, list[Mark]] = {}
    for node in graph.graph.nodes:
        number = traced.index.get(node.name)
        if number is None:
            continue
        for slot, source in arguments_in(node, traced.ops[number].function)[0]:
            if source in positions:
                found.setdefault(positions[source], []).append(Mark(number, Slot(slot)))
    return sorted(found.items())


def linked(graph: fx.GraphModule, traced: Traced) -> list[GraphValue]:
    """The values of `graph`, each with the slots of its ops that it is.

    None where an op writes to what it takes, or runs a graph of its own: a value is then not what
    its node gave.
    """
    known = {node: traced.index.get(node.name) for node in graph.graph.nodes}
    ops = ((node, traced.ops[at].function) for node, at in known.items() if at is not None)
    if traced.bodies or any(_writes(*op) for op in ops):
        return []
    found: dict[fx.Node, GraphValue] = {}
    for node, number in known.items():
        if number is not None:
            for slot, source in arguments_in(node, traced.ops[number].function)[0]:
                if source in found:
                    found[source].marks.append(Mark(number, Slot(slot)))
        example = node.meta.get("example_value")
        if isinstance(example, Tensor):
            found[node] = GraphValue.of(example)
            given = _given(node, traced)
            found[node].marks.extend([] if given is None else [given])
    return merged(value for value in found.values() if value.marks)


def _writes(node: fx.Node, function: Function) -> bool:
    """Whether `node` calls what writes to memory that it was given."""
    schema = getattr(node.target, "_schema", None)
    if function.returns_nothing or writes_in_place(function.target):
        return True
    if schema is not None and schema.is_mutable:
        return True
    positions = {option: function.positions.get(option, len(node.args)) for option in _WRITING}
    given = [arg for at in positions.values() for arg in node.args[at : at + 1]]
    return any([*given, *map(node.kwargs.get, _WRITING)])


def leaving(graph: fx.GraphModule, traced: Traced) -> Passing:
    """The results of `graph` that ops of it give."""
    marks = [(i, _given(node, traced)) for i, node in results_of(graph.graph)]
    return [(i, [mark]) for i, mark in marks if mark is not None]


def used_inside(graph: fx.GraphModule) -> list[int]:
    """The results of `graph` that it computes further with."""
    output = graph.graph.output_node()
    return [i for i, node in results_of(graph.graph) if set(node.users) != {output}]


def _share(step: Step, positions: Sequence[int], results: Sequence[Any]) -> None:
    """Have nobody record the gradients of these results: a part of each stays inside the graph."""
    for position in positions:
        if isinstance(results[position], Tensor):
            step.share(results[position], [])


def _given(result: fx.Node, traced: Traced) -> Mark | None:
    """The output slot that `result` of a graph is."""
    if result.name in traced.index:
        return Mark(traced.index[result.name], Slot("output.0"))
    if result.target is operator.getitem and isinstance(result.args[0], fx.Node):
        number = traced.index.get(result.args[0].name)
        return None if number is None else Mark(number, Slot(f"output.{result.args[1]}"))
    return None


def _put(step: Step, calls: Sequence[Call | None], values: Passing, tensors: Sequence[Any]) -> None:
    """Record `tensors` at their places, and watch for their gradients."""
    for position, marks in values:
        tensor = tensors[position]
        for number, slot in marks if isinstance(tensor, Tensor) else ():
            call = calls[number]
            wanted = step.tap.outputs if slot.is_output else step.tap.inputs
            if call is not None and wanted:
                step.put(call, slot, tensor)
                step.watch(call, [(slot, tensor)])
