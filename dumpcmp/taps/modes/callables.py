"""What torch.compile made: when it is entered and left, and where on the stack it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from dumpcmp.pytorch.names import (
    PROXY_MODE,
    compiling,
    dispatch_mode,
    fx_tracing,
    jit_tracing_state,
    tracing,
)

Leave = Callable[[], None]
Enter = Callable[["CompiledCall"], Leave]  # told of a call; returns what to do at its end

_HOOKS = "enter_exit_hooks"  # dynamo runs those of its context around each call of a callable
WRAPPER = "compile_wrapper"  # the frame that runs them, outside of what dynamo traces


HIDDEN = object()  # what a call gave that raised, or whose result torch keeps to itself


def is_traced() -> bool:
    """Whether this thread compiles or exports what runs now; that another does changes nothing.

    torch's own flag is one for all threads. Dynamo takes the first line for true while it traces.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    here = torch.compiler.is_compiling()
    return here and (compiling() is not None or tracing() is not None)


def traces_itself() -> bool:
    """Whether the program makes a graph of what runs now: by torch.jit.trace, make_fx or torch.fx.

    It would have what a capture does in its graph. Torch's flag of the last is one for all threads.
    """
    return (
        jit_tracing_state() is not None
        or dispatch_mode(PROXY_MODE) is not None
        or fx_tracing._is_fx_tracing_flag
    )


class CompiledCall:
    """A call of what was compiled, read off the frame of torch's wrapper: it is open."""

    def __init__(self, frame: FrameType) -> None:
        names = frame.f_locals
        self.function: Any = names["fn"]
        self.args: tuple[Any, ...] = names["args"]
        self.kwargs: dict[str, Any] = names["kwargs"]

    @staticmethod
    def result() -> Any:
        """What the call that is being left gave, or HIDDEN."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != WRAPPER:
            frame = frame.f_back
        return HIDDEN if frame is None else frame.f_locals.get("result", HIDDEN)


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
        call = CompiledCall(frame)
        return [*theirs, lambda: self._enter(call)]

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


def is_compile_wrapper(module: nn.Module) -> bool:
    """Whether `module` is what torch.compile made of another; it has no path of its own."""
    return type(module).__name__ == "OptimizedModule" and "torch._dynamo" in sys.modules


def is_inlined(wrapper: nn.Module) -> bool:
    """Whether dynamo traces the call of the module inside `wrapper` too, as with torch's own."""
    return getattr(wrapper.forward, "__qualname__", "").startswith("wrap_inline.")


@contextmanager
def once_dynamo_is_there(listen: Callable[[], None]) -> Iterator[None]:
    """Call `listen` now, or when the program compiles first: to import dynamo takes seconds."""
    if "torch._dynamo" in sys.modules:
        listen()
        yield
        return
    compile_now = torch.compile

    def compile_later(*args: Any, **kwargs: Any) -> Any:
        if torch.compile is compile_later:
            torch.compile = compile_now
            listen()
        return compile_now(*args, **kwargs)

    torch.compile = compile_later
    try:
        yield
    finally:
        torch.compile = compile_now


def outermost_call() -> FrameType | None:
    """The frame in which torch.compile was entered first on this thread."""
    found, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == WRAPPER:
            found = frame
        frame = frame.f_back  # type: ignore[assignment]
    return found


def root_of(frame: FrameType | None) -> nn.Module | str:
    """What was compiled: a module, or the name of a function."""
    if frame is None:
        return "compiled"
    above = frame.f_back
    wrapper = above.f_locals.get("self") if above is not None else None
    if isinstance(wrapper, nn.Module) and is_compile_wrapper(wrapper):
        inner: nn.Module = wrapper._orig_mod  # type: ignore[assignment]
        return inner
    function = frame.f_locals.get("fn")
    owner = getattr(function, "__self__", None)
    name = function_name(function)
    return owner if isinstance(owner, nn.Module) and not name else name or "compiled"


def innermost_module() -> tuple[FrameType, nn.Module] | None:
    """The call of a module that is running, below the outermost compiled call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != WRAPPER:
        if frame.f_code is nn.Module._call_impl.__code__:
            return frame, frame.f_locals["self"]
        frame = frame.f_back
    return None
