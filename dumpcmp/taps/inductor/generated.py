"""What generated code calls while it runs: reads its buffers and records them as values of ops."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dumpcmp.nouns.record import TWIN, Call
from dumpcmp.pytorch.randomness import Randomness
from dumpcmp.taps.inductor.grafted_nodes import give
from dumpcmp.taps.inductor.graph_values import RunsTold
from dumpcmp.taps.inductor.graphed import Witnesses, run_beside
from dumpcmp.taps.inductor.pass_texts import unpacked
from dumpcmp.taps.inductor.tables import (
    ENDING,
    Reading,
    kernel_of_each_op,
    marks_in,
    read_table,
    sizes_in,
)
from dumpcmp.taps.inductor.twin import Check, TwinGraph, Twins
from dumpcmp.taps.inductor.views import replay
from dumpcmp.taps.modes.traced import Mark, Traced, calls_of
from dumpcmp.taps.recording.grafts import Grafts
from dumpcmp.taps.recording.step import Step

Generated = Callable[[list[Any]], Any]  # the entry of generated code


class RunEvidence(Protocol):
    """What is told of each run of generated code, which is known by the names of its module."""

    def begin(self, names: dict[str, Any], inputs: Sequence[Any]) -> None: ...

    def run(
        self, names: dict[str, Any], inputs: Sequence[Any], outputs: object, left_out: Sequence[int]
    ) -> None: ...

    def replays(self) -> None: ...


class Tapping:
    """Where what generated code reads goes, and what came of it."""

    def __init__(self, step: Callable[[], Step | None], known: Mapping[str, Traced]) -> None:
        self.step = step  # that this thread is in the middle of
        self.known = known  # graphs of dynamo by digest, by which generated code refers to them
        self.evidence: RunEvidence | None = None  # gathered for a certificate
        self.grafts: Grafts | None = None  # results in place of which others stand
        self.twins = Twins()
        self.witnesses = Witnesses()
        self.runs_told = RunsTold()
        self.num_computed = 0  # nodes of the post-grad graphs that compute a tensor
        self.num_captured = 0  # those of them whose value a kernel stores
        self._kept: set[tuple[str, str]] = set()  # model and code, whose texts the Sink has
        # Forward runs by graph, for their backward to find.
        self.pending: defaultdict[str, deque[Execution]] = defaultdict(lambda: deque(maxlen=256))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what generated code reads while the block runs."""
        global _tapping
        _tapping = self
        give(self._value_in_place)
        try:
            yield
        finally:
            give(None)
            _tapping = None

    def _value_in_place(
        self, own: Tensor, given: list[Tensor], graph: str, op: int, slot: str
    ) -> Tensor | None:
        """What stands in place of the result `own` of an op, in the run that this thread is in."""
        call = None if _thread.run is None else _thread.run.calls[op]
        if self.grafts is None or call is None:
            return None
        return self.grafts.other(
            call, slot, own, self.known[graph].again[op](given) if given else {}
        )

    def facts(self) -> dict[str, Any]:
        return {"twins": self.twins.to_json(), **self.witnesses.facts()}

    def remarks(self) -> list[str]:
        return [*self.twins.remarks(), *self.witnesses.remarks()]

    def keep_texts(self, graph: TappedGraph, step: Step) -> None:
        """Hand generated code, and the graph that it came from, to the Sink once for a model."""
        model = step.model.name
        if (model, graph.path.stem) in self._kept:
            return
        number = sum(other == model for other, _ in self._kept)
        self._kept.add((model, graph.path.stem))
        captured, computed = graph.table.computed
        self.num_captured += captured
        self.num_computed += computed
        name = f"{number}-{'backward' if graph.table.backward else 'forward'}.txt"
        code = graph.path.read_text().partition(ENDING)[0]
        step.outlet.sink.text(model, f"graph-{name}", graph.table.text)
        step.outlet.sink.text(model, f"code-{name}", code)
        for stage, text in graph.table.stages.items():
            step.outlet.sink.text(model, f"{stage}-{name}", text)
        for place, text in unpacked(graph.table.passes):
            step.outlet.sink.text(model, f"pass-{name.removesuffix('.txt')}-{place}.txt", text)


_tapping: Tapping | None = None  # one at a time, seen by every thread: backward has its own


class _Thread(threading.local):
    run: Execution | None = None  # of generated code, that this thread is in
    is_silent = False  # a CUDA graph warms up, is captured or replayed


_thread = _Thread()


class TappedGraph:
    """One piece of generated code, made when it is loaded, of the table at its end.

    Calling it hands over a buffer that was just computed.
    """

    def __init__(self, names: dict[str, Any], table: str) -> None:
        self.names, self.path = names, Path(names["__file__"])
        self.table = read_table(table)
        self.kernel_of = kernel_of_each_op(self.table)
        self.twin = TwinGraph(self.table, names, _twin_tap) if self.table.twin else None

    def __call__(self, number: int, tensor: Tensor, *sizes: int) -> None:
        run = _thread.run
        if run is not None:
            run.read(self.table.lines[number].readings, tensor, sizes)
            if run.check is not None:
                run.check.note(number, tensor)

    def watching(self, call: Generated) -> Generated:
        """Have the runs of `call`, the entry of the generated code, begun and ended."""
        return partial(_watched, self, call)


def _twin_tap(number: int, tensor: Tensor, *sizes: int) -> None:
    if _thread.run is not None and _thread.run.check is not None:
        _thread.run.check.read(number, tensor, sizes)


def _watched(graph: TappedGraph, call: Generated, args: list[Any]) -> Any:
    tapping = _tapping
    if tapping is None or _thread.is_silent:
        return call(args)
    return _observed(tapping, graph, call, args)


def _observed(
    tapping: Tapping,
    graph: TappedGraph,
    call: Generated,
    args: list[Any],
    given: Sequence[Any] | None = None,
) -> Any:
    """Run `call` and record what it computes; what a CUDA graph has `given` for it goes on."""
    inputs, evidence = list(args), tapping.evidence
    if evidence is not None and given is None:
        evidence.begin(graph.names, inputs)
    outer, _thread.run = _thread.run, _begin(tapping, graph, inputs)
    try:
        if given is None:
            outputs = _run(tapping, graph, call, args)
        else:
            outputs = given
            if _thread.run is not None:
                again = _run(tapping, graph, call, args)
                tapping.witnesses.note(given, again, graph.table.unwritten)
        if _thread.run is not None and not graph.table.backward:
            _thread.run.share(graph.table.outputs, outputs)
            if _thread.run.step.tap.backward:
                _thread.run.saved = _addresses([*inputs, *outputs])
                tapping.pending[graph.table.graph].append(_thread.run)
    finally:
        _thread.run = outer
    if evidence is not None and given is None:
        evidence.run(graph.names, inputs, outputs, graph.table.unwritten)
    elif evidence is not None:
        evidence.replays()
    return outputs


def graphed(original: Callable[..., Any], code: Generated, *args: Any, **options: Any) -> Any:
    """Have Inductor make a CUDA graph of `code`, beside which the code itself is recorded."""
    if not (isinstance(code, partial) and code.func is _watched):
        return original(code, *args, **options)
    graph, call = code.args
    if graph.table.has_single_calls:
        if _tapping is not None:
            _tapping.witnesses.off += 1
        return code
    run = original(code, *args, **options)

    def running(args: list[Any]) -> Any:
        tapping = _tapping
        if tapping is None:
            return run(args)

        def observe(inputs: list[Any], outputs: Sequence[Any]) -> None:
            _observed(tapping, graph, call, inputs, outputs)

        return run_beside(run, _silence, observe, graph.table.changed, args)

    return running


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing that this thread runs meanwhile is recorded by the tap."""
    before, _thread.is_silent = _thread.is_silent, True
    try:
        yield
    finally:
        _thread.is_silent = before


def _run(tapping: Tapping, graph: TappedGraph, call: Generated, args: list[Any]) -> Any:
    """Run the code of `graph`, and then its twin where that shows more."""
    run, check = _thread.run, _check(tapping, graph)
    if run is None or check is None:
        return call(args)
    start = Randomness.now(torch_only=True)
    check.begin(args)
    run.check = check
    try:
        with check.running():
            outputs = call(args)
        end = Randomness.now(torch_only=True)
        start.restore()
        try:
            check.end()
        finally:
            end.restore()
    finally:
        run.check = None
    return outputs


def _check(tapping: Tapping, graph: TappedGraph) -> Check | None:
    run, twin = _thread.run, graph.twin
    if run is None or twin is None:
        return None
    if twin.problem:
        tapping.twins.problems[twin.problem] += 1
        return None
    wanted = [mark for mark in twin.hidden if run.wants(mark)]
    put = partial(run.put, seen_in=TWIN)
    return Check(twin, wanted, put, tapping.twins) if wanted else None


def _begin(tapping: Tapping, graph: TappedGraph, inputs: list[Any]) -> Execution | None:
    table, run = graph.table, None
    traced = tapping.known.get(table.graph)
    if traced is None:
        return None
    if table.backward:
        run = _backward_run(tapping.pending[table.graph], inputs)
    elif (step := tapping.step()) is not None:
        sizes = sizes_in(table.symbols, inputs)
        run = Execution(step, calls_of(step, traced, graph.kernel_of, table.kernels, sizes))
    if run is not None:
        tapping.keep_texts(graph, run.step)
        stored = ((line.kernel, list(marks_in(line.readings))) for line in table.lines)
        run.number = tapping.runs_told.tell(run.step, run.calls, table.values, stored, run.number)
        for position, readings in table.inputs:
            run.read(readings, inputs[position], ())
            run.watch(readings, inputs[position])
    return run


def _backward_run(pending: Iterable[Execution], inputs: list[Any]) -> Execution | None:
    """The backward of the forward run whose saved values `inputs` are."""
    given = _addresses(inputs)
    best = max(pending, key=lambda run: len(run.saved & given), default=None)
    if best is None or not best.step.tap.backward:
        return None
    run = Execution(best.step, best.calls, backward=True)
    run.asked, run.number = best.asked, best.number
    best.step.begin_backward()
    return run


def _addresses(tensors: Sequence[Any]) -> set[int]:
    return {t.data_ptr() for t in tensors if isinstance(t, Tensor) and t.numel()}


class Execution:
    """One run of generated code: where each of its values is recorded."""

    def __init__(self, step: Step, calls: Sequence[Call | None], backward: bool = False) -> None:
        self.step = step
        self.calls = calls  # of each op; None where it is not selected
        self.check: Check | None = None  # where its twin runs after it
        self.number = -1  # among runs of generated code in its step; a backward has its forward's
        self.saved: set[int] = set()  # addresses that its backward can be known by
        self.asked: dict[Mark, list[Any]] = {}  # gradients that others want as well
        self._recorded: set[Mark] = set()  # a copy in another layout may come later
        self._backward = backward

    def read(self, readings: Iterable[Reading], tensor: Any, sizes: Sequence[int]) -> None:
        """Record `tensor`, and the views of it, under those of its Marks that wait for them."""
        for views, marks in readings:
            new = [mark for mark in marks if mark not in self._recorded]
            wanted = [mark for mark in new if self.wants(mark)]
            asked = self._backward and any(mark in self.asked for mark in new)
            if (wanted or asked) and isinstance(tensor, Tensor):
                self._recorded.update(new)
                self.put(wanted, replay(tensor, views, sizes), new)

    def put(
        self,
        marks: Sequence[Mark],
        value: Tensor,
        known: Sequence[Mark] | None = None,
        seen_in: str = "",
    ) -> None:
        """Record `value` under `marks`, and where others asked for one that it is `known` as."""
        first = None
        for op, slot in marks:
            call = self.calls[op]
            assert call is not None
            first = self.step.put(call, slot, value, same_as=first, fresh=True, seen_in=seen_in)
        for mark in known or marks:
            for owner, call, slot in self.asked.pop(mark, ()) if self._backward else ():
                first = owner.put(call, slot, value, same_as=first, fresh=True, seen_in=seen_in)

    def share(self, given: Iterable[tuple[int, Mark]], outputs: Sequence[Any]) -> None:
        """Let others ask for the gradients of what this run gave: `given` says which op gave it."""
        for position, (op, slot) in given:
            if isinstance(outputs[position], Tensor):
                asked = self.asked.setdefault(Mark(op, slot.gradient), [])
                self.step.share(outputs[position], asked)

    def watch(self, readings: Iterable[Reading], tensor: Any) -> None:
        """Have the gradient of an argument recorded: whole, with what other code adds to it."""
        if self._backward or not isinstance(tensor, Tensor):
            return
        for mark in [mark for views, marks in readings if not views for mark in marks]:
            call = self.calls[mark.op]
            if call is not None and self.wants(mark):
                self.step.owner_of(call).watch(call, [(mark.slot, tensor)])

    def wants(self, mark: Mark) -> bool:
        if self.calls[mark.op] is None:
            return False
        return self.step.tap.inputs if mark.slot.value.is_input else self.step.tap.outputs
