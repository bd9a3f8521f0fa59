"""Records one call: a torch function that a mode sees, or a module as it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dumpcmp.handlers import FRAGILE, HOLD, SWALLOWING
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables
from dumpcmp.taps.recording.functions import Function, function_of, moments_written
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
        self.run: Callable[..., Any] = self.recorded

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if callables.is_traced():  # dynamo traces the program as if there were no mode
            if func is Tensor.__rsub__:  # which is written in Python, and would be taken apart
                return args[1] - args[0]
            if func is Tensor.__rdiv__:
                return args[1] / args[0]
            return func(*args, **(kwargs or {}))
        return self.run(func, args, kwargs or {})

    def recorded(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        step = self.step
        if step is not None and step.routine is not None:
            course = step.routine.quick
            if (ticket := course.take(func, args, kwargs)) is not None:
                result = func(*args, **kwargs)
                course.give(ticket, args, result)
                return result
        if step is None or (step.is_function and torch._C._current_autograd_node() is not None):
            return func(*args, **kwargs)
        if step.precision is not None:
            func, args, kwargs = step.precision.call(func, args, kwargs)
        function = function_of(func)
        if not function.name or step.outlet.is_inert or distributed.is_machinery(func):
            return func(*args, **kwargs)
        if func is Tensor.view_as and args[0] is args[1]:
            return distributed.handed_on(args[0])
        return run_recorded(step, function, func, args, kwargs)


def run_recorded(
    step: Step,
    function: Function,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    is_beneath_autograd: bool = False,
    written: Iterable[Tensor] = (),
    shared: Shared | None = None,
) -> Any:
    """Run `func`, which is `function`, and record in `step` what it takes and gives.

    Beneath autograd an output has no node yet, and what was changed in place still has its old one:
    the gradient of what is given out is known at who takes it. Torch counts writes to `written`
    later than this is done, or never; and so do outputs that have memory which is `shared`.
    """
    with HOLD, DisableTorchFunction(), DisableTorchDispatch():
        call = step.function(function, args, kwargs)
    result = func(*args, **kwargs)
    if call is not None:
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            given = args[0] if function.returns_nothing else result
            moments = moments_written(function.target, args, kwargs)
            step.forget_each(call, (*written, *moments))
            if shared is None:
                step.outputs(call, given, not is_beneath_autograd)
            else:
                step.outputs_of(call, given, not is_beneath_autograd, shared)
            if not moments and step.routine is not None and not is_beneath_autograd:
                step.routine.learn(func, function, args, kwargs, call, given)
    return result


def enter_module(step: Step, module: nn.Module, args: Any, kwargs: Any) -> Call | Ticket | None:
    """Open the scope of a module call and record its inputs."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return step.enter(module, args, kwargs)


def exit_module(step: Step, call: Call | Ticket, result: object) -> None:
    """Record the outputs of a module call."""
    with DisableTorchFunction(), DisableTorchDispatch():
        step.leave(call, result)
