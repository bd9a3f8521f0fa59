"""What generated code calls while it runs: reads its buffers and records them as values of ops."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dumpcmp.capture.provenance import Traced
from dumpcmp.capture.recorder import Scope, Step
from dumpcmp.capture.views import replay
from dumpcmp.record import NO_KERNEL, Call


class Capture(Protocol):
    """The capture that runs now."""

    @property
    def step(self) -> Step | None:
        """The step that this thread is in the middle of."""
        ...

    def traced(self, digest: str) -> Traced | None:
        """The graph of dynamo that generated code refers to by `digest`."""
        ...

    def loaded(self, graph: TappedGraph, step: Step) -> None:
        """`graph` runs for the first time."""
        ...

    def starting(self, inputs: Sequence[Any]) -> str:
        """Generated code is about to run on `inputs`; what is returned comes back at the end."""
        ...

    def finished(self, graph: TappedGraph, started: str, outputs: Sequence[Any]) -> None:
        """`graph` ran and gave `outputs`."""
        ...


_capture: Capture | None = None  # one at a time, seen by every thread: backward has its own


def set_capture(capture: Capture | None) -> None:
    """Say which capture records what generated code reads; None ends it."""
    global _capture
    _capture = capture


class _Here(threading.local):
    run: Run | None = None


_here = _Here()


def tapped_graph(path: str, table: str) -> TappedGraph:
    """The table that stands at the end of generated code, read once when it is loaded."""
    return TappedGraph(Path(path), json.loads(table))


class TappedGraph:
    """One piece of generated code. Calling it hands over a buffer that was just computed."""

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self.path = path
        self.table = table
        self.backward: bool = table["backward"]

    def __call__(self, number: int, tensor: Tensor, *sizes: int) -> None:
        run = _here.run
        if run is not None:
            run.read(self.table["taps"][number][1], tensor, sizes)

    def watching(self, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """`call`, the entry of the generated code, with its runs begun and ended."""
        return partial(_watched, self, call)


def _watched(graph: TappedGraph, call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
    capture = _capture
    if capture is None:
        return call(args)
    inputs = list(args)
    started = capture.starting(inputs)
    outer, _here.run = _here.run, _begin(capture, graph, inputs)
    try:
        outputs = call(args)
        if _here.run is not None:
            _here.run.end(inputs, outputs)
    finally:
        _here.run = outer
    capture.finished(graph, started, outputs)
    return outputs


def _begin(capture: Capture, graph: TappedGraph, inputs: list[Any]) -> Run | None:
    traced = capture.traced(graph.table["graph"])
    if traced is None:
        return None
    run = _backward_run(traced, inputs) if graph.backward else _forward_run(capture, graph, traced)
    if run is not None:
        capture.loaded(graph, run.step)
        for position, readings in graph.table["inputs"]:
            run.read(readings, inputs[position], ())
    return run


def _forward_run(capture: Capture, graph: TappedGraph, traced: Traced) -> Run | None:
    step = capture.step
    return None if step is None else Run(step, calls_of(step, graph.table, traced), traced)


def _backward_run(traced: Traced, inputs: list[Any]) -> Run | None:
    """The backward of the forward run whose saved values `inputs` are."""
    given = _addresses(inputs)
    best = max(traced.pending, key=lambda run: len(run.saved & given), default=None)
    if best is None or not best.step.tap.backward:
        return None
    return Run(best.step, best.calls, traced, backward=True)


def _addresses(tensors: Sequence[Any]) -> set[int]:
    return {t.data_ptr() for t in tensors if isinstance(t, Tensor) and t.numel()}


class Run:
    """One run of generated code: where each of its values is recorded."""

    def __init__(
        self, step: Step, calls: Sequence[Call | None], traced: Traced, backward: bool = False
    ) -> None:
        self.step = step
        self.calls = calls
        self.saved: set[int] = set()
        self._recorded: set[tuple[int, str]] = set()  # a copy in another layout may come later
        self._traced = traced
        self._backward = backward

    def read(self, readings: Any, tensor: Any, sizes: Sequence[int]) -> None:
        """Record `tensor`, and the views of it, at the places that wait for them."""
        for steps, places in readings:
            new = [(op, slot) for op, slot in places if (op, slot) not in self._recorded]
            wanted = [(self.calls[op], slot) for op, slot in new if self._wants(op, slot)]
            if not wanted or not isinstance(tensor, Tensor):
                continue
            self._recorded.update(new)
            value, first = replay(tensor, steps, sizes), None
            for call, slot in wanted:
                assert call is not None
                first = self.step.put(call, slot, value, same_as=first, fresh=True)

    def _wants(self, op: int, slot: str) -> bool:
        tap = self.step.tap
        if self.calls[op] is None:
            return False
        return tap.inputs if slot.removeprefix("grad_").startswith("input") else tap.outputs

    def end(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Remember what the backward of this run can be known by."""
        if not self._backward and self.step.tap.backward:
            self.saved = _addresses([*inputs, *outputs])
            self._traced.pending.append(self)


def calls_of(step: Step, table: dict[str, Any], traced: Traced) -> list[Call | None]:
    """Number the ops of a graph as they are in an eager run, and tell the archive of them all.

    An op that is not materialised is told of, too, with the kernel that it was fused into.
    """
    names = _names(step, traced)
    kernels = _kernels(table)
    calls: list[Call | None] = []
    for number, (op, name) in enumerate(zip(traced.ops, names, strict=True)):
        if name is None:
            calls.append(None)
            continue
        kernel = kernels.get(number, "")
        inside = [names[i] for i in table["kernels"].get(kernel, ()) if i != number]
        origins = tuple(f"{other[0]}#{other[1]}" for other in inside if other is not None)
        kernel = kernel.partition("#")[0] or NO_KERNEL
        calls.append(step.call(*name, op.function.target, "", op.place.line, origins, kernel))
    return calls


def _names(step: Step, traced: Traced) -> list[tuple[str, int] | None]:
    base, scopes = step.scope, dict[str, Scope]()
    names = []
    for op in traced.ops:
        instance = op.place.instance
        if instance and instance not in scopes:
            scopes[instance] = step.new_scope(op.place.under(base.path))
        step.scope = scopes[instance] if instance else base
        names.append(step.count(op.function))
    step.scope = base
    return names


def _kernels(table: dict[str, Any]) -> dict[int, str]:
    """The kernel of each op: the one that stores its output, or the first that it is inside of."""
    found: dict[int, str] = {}
    for kernel, readings in table["taps"]:
        for _, places in readings:
            for op, slot in places:
                if slot.startswith("output"):
                    found.setdefault(op, kernel)
    for kernel, ops in table["kernels"].items():
        for op in ops:
            found.setdefault(op, kernel)
    return found
