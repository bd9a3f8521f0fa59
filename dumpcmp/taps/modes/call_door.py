"""The door through which every call of a module passes while a capture runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.names import patched
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables
from dumpcmp.taps.modes.around import RunPlan, around

_ATTRIBUTE = "_compiled_call_impl"  # nn.Module.__call__ runs it in place of _call_impl if it is set

Intercept = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], RunPlan]


class CallDoor:
    """Stands in for `nn.Module._compiled_call_impl`, through which every module call passes.

    Unlike a forward hook it sees keyword arguments before they change, and exceptions; unlike
    a patched `__call__` it lets dynamo trace `forward` as before.
    """

    def __init__(self, intercept: Intercept) -> None:
        self.intercept = intercept
        self.num_traced = 0  # calls while the program traced itself
        self.parallel: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # wrappers that were called

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # dynamo traces the program as if it were closed
            return None
        if module is None:
            return self
        return around(self.plan, module)

    def __set__(self, module: nn.Module, call: Any) -> None:
        module.__dict__[_ATTRIBUTE] = call

    def plan(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunPlan:
        """What a call of `module` is to run: what it would, or that with our work around it."""
        run = module.__dict__.get(_ATTRIBUTE) or module._call_impl
        if distributed.is_parallel_wrapper(module):
            self.parallel.add(module)
            return run, args, kwargs, None
        if callables.is_traced():
            return run, args, kwargs, None
        if callables.traces_itself():
            self.num_traced += 1
            return run, args, kwargs, None
        return self.intercept(module, run, args, kwargs)


@contextmanager
def module_calls(intercept: Intercept) -> Iterator[CallDoor]:
    """Send every call of a module in this process through `intercept` while the block runs."""
    if isinstance(nn.Module.__dict__[_ATTRIBUTE], CallDoor):
        raise CaptureError(
            "another capture is running in this process",
            hint="end it first: only one capture can be active at a time",
        )
    door = CallDoor(intercept)
    with patched((nn.Module, _ATTRIBUTE, lambda _: door)):
        yield door
