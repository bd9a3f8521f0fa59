"""Tells when a compiled callable is entered and left, whenever torch.compile made it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Leave = Callable[[], None]
Enter = Callable[[Any], Leave]  # told the function that was compiled; returns what to do at its end

_HOOKS = "enter_exit_hooks"  # dynamo runs those of its context around each call of a callable
WRAPPER = "compile_wrapper"  # the frame that runs them, outside of what dynamo traces


class _Hooks:
    """Stands in for dynamo's lists of hooks: each has ours at its end while a callable runs."""

    def __init__(self, enter: Enter) -> None:
        self._enter = enter

    def __get__(self, context: Any, owner: type | None = None) -> Any:
        if context is None:
            return self
        theirs, frame = context.__dict__[_HOOKS], sys._getframe(1)
        if frame.f_code.co_name != WRAPPER:
            return theirs
        function = frame.f_locals["fn"]
        return [*theirs, lambda: self._enter(function)]

    def __set__(self, context: Any, hooks: list[Any]) -> None:
        context.__dict__[_HOOKS] = hooks


@contextmanager
def compiled_calls(enter: Enter) -> Iterator[None]:
    """Tell `enter` of each call of a compiled callable while the block runs."""
    from torch._dynamo.eval_frame import _TorchDynamoContext as Context

    setattr(Context, _HOOKS, _Hooks(enter))
    try:
        yield
    finally:
        delattr(Context, _HOOKS)


def function_name(function: Any) -> str:
    """What a compiled function is called; empty for torch's own, such as the call of a module."""
    if str(getattr(function, "__module__", "")).partition(".")[0] == "torch":
        return ""
    return str(getattr(function, "__name__", type(function).__name__))
