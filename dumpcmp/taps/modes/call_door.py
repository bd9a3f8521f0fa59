"""The door through which every call of a module passes while a capture runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.names import patched
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables

_ATTRIBUTE = "_compiled_call_impl"  # nn.Module.__call__ runs it in place of _call_impl if it is set

Intercept = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]


class CallDoor:
    """Stands in for `nn.Module._compiled_call_impl`, through which every module call passes.

    Unlike a forward hook it sees keyword arguments before they change, and exceptions; unlike
    a patched `__call__` it lets dynamo trace `forward` as before.
    """

    def __init__(self, intercept: Intercept) -> None:
        self.intercept = intercept

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Any:
        if callables.is_traced():  # dynamo traces the program as if it were closed
            return None
        if module is None:
            return self
        run = module.__dict__.get(_ATTRIBUTE) or module._call_impl
        return run if distributed.is_parallel_wrapper(module) else self.intercept(module, run)

    def __set__(self, module: nn.Module, call: Any) -> None:
        module.__dict__[_ATTRIBUTE] = call


@contextmanager
def module_calls(intercept: Intercept) -> Iterator[None]:
    """Send every call of a module in this process through `intercept` while the block runs."""
    if isinstance(nn.Module.__dict__[_ATTRIBUTE], CallDoor):
        raise CaptureError(
            "another capture is running in this process",
            hint="end it first: only one capture can be active at a time",
        )
    with patched((nn.Module, _ATTRIBUTE, lambda _: CallDoor(intercept))):
        yield
