"""Records one call: a torch function that a mode sees, or a module as it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dumpcmp.handlers import FRAGILE, HOLD, SWALLOWING
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.names import (
    DisableTorchDispatch,
    DisableTorchFunction,
    num_function_modes,
    private,
)
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables
from dumpcmp.taps.modes.around import OF_FUNCTIONS, RunPlan, answer_in_c, carried_out, work
from dumpcmp.taps.recording.functions import Function, function_of, moments_written
from dumpcmp.taps.recording.grafts import GRAFTED
from dumpcmp.taps.recording.routine import Ticket
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.values import Shared

# Torch takes a mode off its stack there before it is ready to put it back.
SWALLOWING.update(
    (torch.overrides.__file__, name) for name in ("_pop_mode_temporarily", "_pop_mode")
)
FRAGILE.add((torch.overrides.__file__, "handle_torch_function"))


class FunctionMode(TorchFunctionMode):
    """Records each torch function: inputs as they are before it runs, outputs after."""

    def __init__(self, step: Step | None) -> None:
        super().__init__()
        self.step = step  # None: what runs now is not recorded
        answer_in_c(self, "__torch_function__", OF_FUNCTIONS, follows=True)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Where there is no C, and for dynamo, which traces as if there were no mode."""
        if callables.is_traced():
            if func is Tensor.__rsub__:  # which is written in Python, and would be taken apart
                return args[1] - args[0]
            if func is Tensor.__rdiv__:
                return args[1] / args[0]
            return func(*args, **(kwargs or {}))
        if callables.traces_itself() or self.step is None:
            return func(*args, **(kwargs or {}))
        plan = work(self.begin, func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if plan is None else carried_out(plan)

    def begin(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> RunPlan | None:
        """Record that `func` is called in the step, and plan to record what it gives.

        None stands for a call of which nothing is recorded.
        """
        step = self.step
        if step is None or (step.is_function and torch._C._current_autograd_node() is not None):
            return None
        if step.precision is not None:
            func, args, kwargs = step.precision.call(func, args, kwargs)
        function = function_of(func)
        if not function.name or step.outlet.is_inert or distributed.is_machinery(func):
            return func, args, kwargs, None
        if func is Tensor.view_as and args[0] is args[1]:
            return distributed.handed_on, (args[0],), {}, None
        return recorded(step, function, func, args, kwargs)

    @contextmanager
    def in_python(self) -> Iterator[None]:
        """Show dynamo, which reads it, the method that is written in Python."""
        in_c = vars(self).pop("__torch_function__", None)
        try:
            yield
        finally:
            if in_c is not None:
                self.__torch_function__ = in_c  # type: ignore[method-assign]

    def __exit__(self, *raised: object) -> None:
        """Leave the stack of modes, whatever the program has left on it meanwhile."""
        take_off(self)


class TracedFunctionMode(FunctionMode):
    """The same, for programs that are compiled: always as dynamo reads it."""

    def __init__(self, step: Step | None) -> None:
        super().__init__(step)
        vars(self).pop("__torch_function__", None)


def take_off(mode: TorchFunctionMode) -> None:
    """Take `mode` off the stack of this thread, and leave those above it there."""
    pop = private("torch._C:_pop_torch_function_stack")
    push = private("torch._C:_push_on_torch_function_stack")
    above = []
    while num_function_modes():
        top = pop()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        push(other)


@contextmanager
def off_the_stack(mode: TorchFunctionMode | None) -> Iterator[None]:
    """Have `mode` see nothing while the block runs, and not be there for who asks."""
    if mode is None or num_function_modes() == 0:
        yield
        return
    take_off(mode)
    try:
        yield
    finally:
        private("torch._C:_push_on_torch_function_stack")(mode)


def recorded(
    step: Step,
    function: Function,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    is_beneath_autograd: bool = False,
    written: Iterable[Tensor] = (),
    shared: Shared | None = None,
) -> RunPlan:
    """Record in `step` what `func`, which is `function`, takes; plan to record what it gives.

    Beneath autograd an output has no node yet, and what was changed in place still has its old one:
    the gradient of what is given out is known at who takes it. Torch counts writes to `written`
    later than this is done, or never; and so do outputs that have memory which is `shared`.
    """
    with HOLD:
        try:
            with DisableTorchFunction(), DisableTorchDispatch():
                call = step.function(function, args, kwargs)
        except Exception as error:
            step.outlet.give_up(error)
            call = None
    if call is None:
        return func, args, kwargs, None
    if call.target == GRAFTED and step.grafts is not None:
        func = step.grafts.around(func, call, function.returns_nothing, is_beneath_autograd)
    of = _RunningCall(function, func, args, kwargs, call, is_beneath_autograd, written, shared)
    return func, args, kwargs, partial(_record_outputs, step, of)


class _RunningCall(NamedTuple):
    """A call that runs, of which the outputs are still to come."""

    function: Function
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    call: Call
    is_beneath_autograd: bool
    written: Iterable[Tensor]
    shared: Shared | None


def _record_outputs(step: Step, of: _RunningCall, result: Any, error: BaseException | None) -> None:
    if error is not None:
        return
    with HOLD:
        try:
            with DisableTorchFunction(), DisableTorchDispatch():
                _outputs(step, of, result)
        except Exception as trouble:
            step.outlet.give_up(trouble)


def _outputs(step: Step, of: _RunningCall, result: Any) -> None:
    given = of.args[0] if of.function.returns_nothing else result
    moments = moments_written(of.function.target, of.args, of.kwargs)
    step.forget_each(of.call, (*of.written, *moments))
    if of.shared is None:
        step.outputs(of.call, given, not of.is_beneath_autograd)
    else:
        step.outputs_of(of.call, given, not of.is_beneath_autograd, of.shared)
    if not moments and step.routine is not None and not of.is_beneath_autograd:
        step.routine.learn(of.func, of.function, of.args, of.kwargs, of.call, given)


def enter_module(step: Step, module: nn.Module, args: Any, kwargs: Any) -> Call | Ticket | None:
    """Open the scope of a module call and record its inputs."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return step.enter(module, args, kwargs)


def exit_module(step: Step, call: Call | Ticket, result: object) -> None:
    """Record the outputs of a module call."""
    with DisableTorchFunction(), DisableTorchDispatch():
        step.leave(call, result)
