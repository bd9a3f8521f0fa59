"""What generated code calls while it runs: reads its buffers and records them as values of ops."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dumpcmp.nouns.record import NO_KERNEL, TWIN, Call
from dumpcmp.taps.inductor.traced import Traced
from dumpcmp.taps.inductor.twin import Check, Tally, TwinGraph, same_randomness
from dumpcmp.taps.inductor.views import replay
from dumpcmp.taps.modes.graph import Spots
from dumpcmp.taps.recording.gradients import address_of
from dumpcmp.taps.recording.recorder import Step


class Capture(Protocol):
    """The capture that runs now."""

    @property
    def step(self) -> Step | None:
        """The step that this thread is in the middle of."""
        ...

    @property
    def twins(self) -> Tally:
        """Where what comes of twins is counted."""
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
    check: Check | None = None


_here = _Here()


def tapped_graph(names: dict[str, Any], table: str) -> TappedGraph:
    """The table that stands at the end of generated code, read once when it is loaded."""
    return TappedGraph(names, json.loads(table))


class TappedGraph:
    """One piece of generated code. Calling it hands over a buffer that was just computed."""

    def __init__(self, names: dict[str, Any], table: dict[str, Any]) -> None:
        self.path = Path(names["__file__"])
        self.table = table
        self.backward: bool = table["backward"]
        self.twin = TwinGraph(table, names) if "twin" in table else None

    def __call__(self, number: int, tensor: Tensor, *sizes: int) -> None:
        if _here.run is not None:
            _here.run.read(self.table["taps"][number][2], tensor, sizes)
        if _here.check is not None:
            _here.check.note(number, tensor)

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
        outputs = _run(capture, graph, call, args)
        if _here.run is not None:
            _here.run.end(inputs, outputs)
            _here.run.share(graph.table["outputs"], outputs)
    finally:
        _here.run = outer
    capture.finished(graph, started, outputs)
    return outputs


def _run(
    capture: Capture, graph: TappedGraph, call: Callable[[list[Any]], Any], args: list[Any]
) -> Any:
    """Run the code of `graph`, and then its twin where that shows more."""
    check = _check(capture, graph)
    if check is None:
        return call(args)
    with same_randomness() as back:
        check.begin(args)
        _here.check = check
        try:
            outputs = call(args)
        finally:
            _here.check = None
        back()
        check.end()
    return outputs


def _check(capture: Capture, graph: TappedGraph) -> Check | None:
    run, twin = _here.run, graph.twin
    if run is None or twin is None:
        return None
    if twin.problem:
        capture.twins.problems[twin.problem] += 1
        return None
    wanted = [(op, slot) for op, slot in twin.hidden if run.wants(op, slot)]
    put = partial(run.put, seen_in=TWIN)
    return Check(twin, wanted, put, capture.twins) if wanted else None


def _begin(capture: Capture, graph: TappedGraph, inputs: list[Any]) -> Run | None:
    traced = capture.traced(graph.table["graph"])
    if traced is None:
        return None
    run = _backward_run(traced, inputs) if graph.backward else _forward_run(capture, graph, traced)
    if run is not None:
        capture.loaded(graph, run.step)
        for position, readings in graph.table["inputs"]:
            run.read(readings, inputs[position], ())
            run.watch(readings, inputs[position])
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
    run = Run(best.step, best.calls, traced, backward=True)
    run.asked = best.asked
    for step in reversed([best.step, *best.step.inner.values()]):  # the first one comes last
        if step.gradients is not None:
            step.gradients.begin()
    return run


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
        self.asked: dict[tuple[int, str], list[Any]] = {}  # gradients that others want as well
        self._recorded: set[tuple[int, str]] = set()  # a copy in another layout may come later
        self._traced = traced
        self._backward = backward

    def read(self, readings: Any, tensor: Any, sizes: Sequence[int]) -> None:
        """Record `tensor`, and the views of it, at the places that wait for them."""
        for steps, places in readings:
            new = [(op, slot) for op, slot in places if (op, slot) not in self._recorded]
            wanted = [(op, slot) for op, slot in new if self.wants(op, slot)]
            asked = self._backward and any(place in self.asked for place in new)
            if (wanted or asked) and isinstance(tensor, Tensor):
                self._recorded.update(new)
                self.put(wanted, replay(tensor, steps, sizes), new)

    def put(
        self,
        places: Sequence[tuple[int, str]],
        value: Tensor,
        known: Sequence[tuple[int, str]] | None = None,
        seen_in: str = "",
    ) -> None:
        """Record `value` at `places`, and where others asked for one that it is `known` as."""
        first = None
        for op, slot in places:
            call = self.calls[op]
            assert call is not None
            first = self.step.put(call, slot, value, same_as=first, fresh=True, seen_in=seen_in)
        for place in known or places:
            for owner, call, slot in self.asked.pop(place, ()) if self._backward else ():
                first = owner.put(call, slot, value, same_as=first, fresh=True, seen_in=seen_in)

    def share(self, given: Any, outputs: Sequence[Any]) -> None:
        """Let others ask for the gradients of what this run gave: `given` says which op gave it."""
        for position, (op, slot) in given if not self._backward else ():
            if isinstance(outputs[position], Tensor):
                asked = self.asked.setdefault((op, f"grad_{slot}"), [])
                self.step.shared[address_of(outputs[position])] = asked

    def watch(self, readings: Any, tensor: Any) -> None:
        """Have the gradient of an argument recorded: whole, with what other code adds to it."""
        places = [place for steps, places in readings if not steps for place in places]
        for op, slot in places if not self._backward and isinstance(tensor, Tensor) else ():
            call = self.calls[op]
            owner = self.step.owner_of(call) if call is not None else None
            if owner is not None and owner.gradients is not None and self.wants(op, slot):
                owner.gradients.watch(call, [(slot, tensor)])

    def wants(self, op: int, slot: str) -> bool:
        """Whether this value of `op` is selected."""
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
        origins = tuple(f"{other[1]}#{other[2]}" for other in inside if other is not None)
        kernel = kernel.partition("#")[0] or NO_KERNEL
        owner, op_name, count = name
        target, line = op.function.target, op.place.line
        calls.append(owner.call(op_name, count, target, "", line, origins, kernel))
    return calls


def _names(step: Step, traced: Traced) -> list[tuple[Step, str, int] | None]:
    """The step, op and number of each op of a graph; None where it is not selected."""
    spots = Spots(step)
    names: list[tuple[Step, str, int] | None] = []
    for op in traced.ops:
        owner = spots.step_of(op.place)
        counted = owner.count(op.function) if owner is not None else None
        names.append((owner, *counted) if owner is not None and counted is not None else None)
    step.scope = spots.base
    return names


def _kernels(table: dict[str, Any]) -> dict[int, str]:
    """The kernel of each op: the one that stores its output, or the first that it is inside of."""
    found: dict[int, str] = {}
    for kernel, _, readings in table["taps"]:
        for _, places in readings:
            for op, slot in places:
                if slot.startswith("output"):
                    found.setdefault(op, kernel)
    for kernel, ops in table["kernels"].items():
        for op in ops:
            found.setdefault(op, kernel)
    return found
