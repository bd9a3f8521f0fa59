"""Captures the torch functions that run inside modules, as a TorchFunctionMode sees them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.taps.distributed.ranks import handed_on, hands_on, is_machinery
from dumpcmp.taps.recording.naming import function_of
from dumpcmp.taps.recording.step import Step


class FunctionMode(TorchFunctionMode):
    """Records each torch function: inputs as they are before it runs, outputs after."""

    def __init__(self, step: Step | None) -> None:
        super().__init__()
        self.step = step  # None: what runs now is not recorded
        self.run: Callable[..., Any] = self.recorded

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # dynamo traces the program as if there were no mode
            if func is Tensor.__rsub__:  # which is written in Python, and would be taken apart
                return args[1] - args[0]
            if func is Tensor.__rdiv__:
                return args[1] / args[0]
            return func(*args, **(kwargs or {}))
        return self.run(func, args, kwargs or {})

    def recorded(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run `func` and record what it takes and gives."""
        step = self.step
        if step is None or (step.is_function and torch._C._current_autograd_node() is not None):
            return func(*args, **kwargs)
        if step.precision is not None:
            func, args, kwargs = step.precision.call(func, args, kwargs)
        function = function_of(func)
        if not function.name or is_machinery(func):
            return func(*args, **kwargs)
        if hands_on(func, args):
            return handed_on(args[0], func)
        with DisableTorchFunction(), DisableTorchDispatch():
            call = step.function(function, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            with DisableTorchFunction(), DisableTorchDispatch():
                step.outputs(call, args[0] if function.returns_nothing else result)
        return result
