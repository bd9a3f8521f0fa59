"""Watches a program and has every op of it checked, forward and backward, as it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.checkup.dropping import Draw
from dumpcmp.checkup.passing_back import UNSEEN, InnerCalls, Passed, of_one
from dumpcmp.checkup.tallying import Checkup
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Record, Source
from dumpcmp.nouns.selection import make_tap
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction, check_names, patched
from dumpcmp.pytorch.nodes import Edge, SlotGrads, edge_of, watch_backward
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.replay.listed import function_named
from dumpcmp.taps.modes.around import RunPlan
from dumpcmp.taps.modes.function_mode import FunctionMode
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.calls import current_line, function_arguments
from dumpcmp.taps.recording.functions import Function, function_of, in_order
from dumpcmp.taps.recording.plain import version_of
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step


@contextmanager
def check(
    model: nn.Module | None = None,
    *,
    every: int = 1,
    layers: str | Sequence[str] | None = None,
    tokens: str | Iterable[int] | None = None,
) -> Iterator[Checkup]:
    """Check every op that `model` runs in the block, or every model; there is no golden run.

        with dumpcmp.check(model) as checkup:
            model(x).sum().backward()
        print(checkup)

    Each op is run again in float64, on its own device, on what it was given, and what it gave out
    is held against that; so is its backward pass, where there is one. `every` checks only each nth
    call. Nothing is written. Without a `model` functions outside of modules, such as a loss, are
    checked as well, under the name "program".
    """
    recorder = Recorder(_Unkept(), make_tap(tokens, layers))
    recorder.lacking = check_names("every mode", "--mode eager")
    checkup = Checkup(every)
    roots = () if model is None else (model,)
    inside = _Inside()
    watching = ModuleCapture(recorder, roots, partial(_CheckingMode, checkup, inside))
    watching.enter = _open_scope
    outside = None
    if model is None:
        outside = recorder.begin_function("program", wanted=True, begin=recorder.begin)

    def step_now() -> Step | None:
        return watching.step or outside

    outermost = _OutsideMode(checkup, inside, outside, lambda: watching.step) if outside else None
    with (
        outermost or nullcontext(),
        watching.running(),
        _custom_functions(checkup, inside, step_now),
    ):
        yield checkup
    checkup.end((*recorder.tap.unmatched(recorder.num_steps, recorder.ops), *recorder.lacking))


class _Unkept:
    """A Sink for what nobody keeps."""

    def call(self, call: Call) -> None: ...

    def put(self, record: Record, source: Source | None) -> None: ...

    def text(self, model: str, name: str, text: str) -> None: ...


class _Inside(threading.local):
    """Where this thread is: inside of which custom Function."""

    calls: InnerCalls | None = None


def _open_scope(step: Step, module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    """Know which module runs; what it takes and gives are values of the functions in it."""
    step.scopes.open(step.model.path_of(module, step.scopes.here.path))


class _CheckingMode(FunctionMode):
    """Checks each torch function, in place of recording it."""

    def __init__(self, checkup: Checkup, inside: _Inside, step: Step | None) -> None:
        super().__init__(step)
        self._checkup, self._inside = checkup, inside

    def begin(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> RunPlan | None:
        function, inner = function_of(func), self._inside.calls
        counted = self.step.count(function) if self.step and function.name else None
        wanted = counted is not None and self._checkup.wants_next()
        if self.step is None or counted is None or not (wanted or inner):
            return None
        with _unseen() as is_differentiated:
            call, took, given = _given(self.step, *counted, function, args, kwargs)
            edges = _edges(took) if is_differentiated else []
            draw = Draw.of(function, func, args, kwargs) if edges and wanted else None
            before = _versions(took)

        def after(result: Any, error: BaseException | None) -> None:
            if error is not None:
                return
            with _unseen():
                gave = slots_of("output", args[0] if function.returns_nothing else result)
                computes = bool(gave) or _versions(took) != before or not _is_of_torch(call)
                if wanted and computes:
                    self._checkup.check(call, given, [(slot, t.detach()) for slot, t in gave])
                if inner is not None:
                    inner.add(call, given, took, gave)
                if wanted and edges:
                    drawn = (
                        {} if draw is None else draw.kept(next(iter(given.values())), gave[0][1])
                    )
                    passed = of_one(call, given | drawn, took, gave)
                    _watch(self._checkup, call, passed, edges, gave)

        return func, args, kwargs, after


class _OutsideMode(_CheckingMode):
    """Checks what a program computes outside of its modules."""

    def __init__(
        self, checkup: Checkup, inside: _Inside, step: Step, within: Callable[[], Step | None]
    ) -> None:
        super().__init__(checkup, inside, step)
        self._within = within  # the step of a module that is running

    def begin(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> RunPlan | None:
        function = function_of(func)
        is_own = self._within() is None and torch._C._current_autograd_node() is None
        if not is_own or function.name.startswith("_record_function"):
            return None
        return super().begin(func, args, kwargs)


@contextmanager
def _custom_functions(
    checkup: Checkup, inside: _Inside, step_now: Callable[[], Step | None]
) -> Iterator[None]:
    """Have the backward pass of each custom Function checked against what it computes."""

    def around(apply: Any) -> Any:
        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            run = partial(apply.__func__, cls)
            step = step_now()
            if step is None or inside.calls is not None or _is_of_op(cls):
                return run(*args, **kwargs)
            return _run_custom(checkup, inside, step, cls, run, args, kwargs)

        return classmethod(applied)

    with patched((torch.autograd.Function, "apply", around)):
        yield


def _is_of_op(cls: type) -> bool:
    """Whether torch made this Function for the backward of a custom op, which is checked itself."""
    return cls.__module__.startswith("torch._library.")


def _run_custom(
    checkup: Checkup,
    inside: _Inside,
    step: Step,
    cls: type,
    run: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    name = f"{cls.__module__}.{cls.__qualname__}"
    counted = step.count(Function(cls.__name__, target=name))
    if counted is None or not checkup.wants_next():
        return run(*args, **kwargs)
    with _unseen() as is_differentiated:
        took, arguments = function_arguments(args, kwargs, {})
        edges = _edges(took) if is_differentiated else []
    op, number = counted
    call = Call(
        step.model.name, step.number, Op(op), number, 0, name, current_line(), arguments=arguments
    )
    inside.calls = InnerCalls(took)
    try:
        result = run(*args, **kwargs)
        inner = inside.calls
    finally:
        inside.calls = None
    with _unseen():
        gave = slots_of("output", result)
        if inner.computes_unseen(gave):
            checkup.leave_open(call, UNSEEN)
        elif edges:
            _watch(checkup, call, inner.passed([(slot, id(t)) for slot, t in gave]), edges, gave)
    return result


def _watch(
    checkup: Checkup, call: Call, passed: Passed, edges: Sequence[tuple[str, Edge]], gave: Slots
) -> None:
    """Have the backward pass of a call checked when it runs, if it does."""

    def done(given: SlotGrads, made: SlotGrads) -> None:
        with _unseen():
            checkup.check_backward(call, passed.held(given, made))

    watch_backward(edges, gave, done, partial(checkup.leave_open, call))


def _versions(took: Slots) -> list[int | None]:
    """What changes with every write to what a call is given that torch counts."""
    return [version_of(tensor) for _, tensor in took]


def _is_of_torch(call: Call) -> bool:
    """Whether torch's own function is called, which counts its writes: no custom op."""
    return call.target.startswith("torch.") and not call.target.startswith("torch.ops.")


def _edges(took: Slots) -> list[tuple[str, Edge]]:
    """Where the gradients of what a call is given go to, as it is before the call runs."""
    found = ((slot, edge_of(tensor)) for slot, tensor in took)
    return [(slot, edge) for slot, edge in found if edge is not None]


@contextmanager
def _unseen() -> Iterator[bool]:
    """Compute without modes and gradients of the program; whether it wants gradients."""
    is_differentiated = torch.is_grad_enabled()
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        yield is_differentiated


def _given(
    step: Step, op: str, number: int, function: Function, args: Any, kwargs: Any
) -> tuple[Call, Slots, dict[str, Tensor]]:
    """The call that is about to run, what it is given, and that as it is before it runs."""
    found, arguments = function_arguments(in_order(function, args), kwargs, function.positions)
    call = Call(
        step.model.name, step.number, Op(op), number, 0, function.target, current_line(),
        arguments=arguments,
    )  # fmt: skip
    keeps = not _may_write(function, kwargs)
    given = {slot: t.detach() if keeps else t.detach().clone() for slot, t in found}
    return call, found, given


def _may_write(function: Function, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may change what it is given."""
    if "out" in kwargs:
        return True
    try:
        return function_named(function.target).changes_first
    except DumpcmpError:
        return True
