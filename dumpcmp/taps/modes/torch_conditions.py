"""What torch asks before it takes one of two paths, answered as if nothing were captured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.imports import held, once_imported
from dumpcmp.pytorch.names import Patch, check_names, num_function_modes, patched, private
from dumpcmp.taps.modes.function_mode import FunctionMode

# Whether a function mode or a tensor subclass overrides torch functions. Whoever then hands calls
# over to it wants to know of our mode. Whoever only asks must not hear of it: nn.MultiheadAttention
# runs as one fused op where nothing overrides anything.
OVERRIDE_QUESTIONS = (
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
)
_HANDS_OVER = "torch_function"  # handle_torch_function, or a helper that is named after it

# Modules of torch in which the answer decides what is computed. Elsewhere in torch, tracing needs
# the answer that dynamo gives, and the results are the same either way.
PATHS_BY_TRACING = frozenset(("torch.nn.modules.activation", "torch.nn.modules.transformer"))
_MACHINERY = ("torch.", "dumpcmp.")

Handlers = dict[Any, Callable[..., Any]]  # how dynamo traces functions of torch, by function


@cache
def _hands_over(code: CodeType) -> bool:
    """Whether a function with this code gives calls to whatever overrides torch functions."""
    names = (name for name in code.co_names if name not in OVERRIDE_QUESTIONS)
    if any(name.endswith(_HANDS_OVER) for name in names):
        return True
    return any(_hands_over(inner) for inner in code.co_consts if isinstance(inner, CodeType))


def has_other_modes() -> bool:
    """Whether a function mode that is not ours is on the stack of this thread."""
    stack_at = private("torch._C:_get_function_stack_at")
    return not all(isinstance(stack_at(n), FunctionMode) for n in range(num_function_modes()))


@cache
def is_overriding(kind: type) -> bool:
    """Whether `kind` is a class of tensors of the program's own that overrides torch functions."""
    own = getattr(kind, "__torch_function__", None)
    default = (Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    function = getattr(own, "__func__", own)
    is_default = any(function is getattr(each, "__func__", each) for each in default)
    return own is not None and not is_default and kind.__module__.partition(".")[0] != "torch"


def _without_ours(ask: Callable[..., bool], args: tuple[Any, ...]) -> bool:
    """What `ask` answers with no function mode of ours on the stack of this thread."""
    if has_other_modes():
        return ask(*args)
    pop = private("torch._C:_pop_torch_function_stack")
    push = private("torch._C:_push_on_torch_function_stack")
    ours = [pop() for _ in range(num_function_modes())]
    try:
        return ask(*args)
    finally:
        for mode in reversed(ours):
            push(mode)


@cache
def _question(name: str) -> tuple[Callable[..., bool], Callable[..., bool]]:
    """The function of torch called `name`, and what stands in for it; one for the whole process.

    TorchScript knows it as it knows torch's own.
    """
    ask: Callable[..., bool] = getattr(torch.overrides, name)

    def asked(*args: Any) -> bool:
        answer = ask(*args)
        if not answer or _hands_over(sys._getframe(1).f_code):
            return answer
        return _without_ours(ask, args)

    asked.__name__ = asked.__qualname__ = name
    private("torch.jit._builtins:_register_builtin")(asked, "aten::has_torch_function")
    return ask, asked


def _instead(asked: Callable[..., bool], ask: Callable[..., bool]) -> Callable[..., bool]:
    del ask
    return asked


def _overrides_patches() -> Iterator[Patch]:
    for module, name, found in held(*OVERRIDE_QUESTIONS):
        ask, asked = _question(name)
        is_torch = vars(module).get("__name__", "").partition(".")[0] == "torch"
        if found is ask and (module is torch.overrides or not is_torch):
            yield module, name, partial(_instead, asked)


@contextmanager
def overrides_as_uncaptured(lacking: list[str]) -> Iterator[None]:
    """Have code that only asks whether torch functions are overridden not hear of our mode.

    What this torch lacks for that is added to `lacking`.
    """

    def teach() -> None:
        missing = check_names("questions in torch.compile")
        lacking.extend(missing)
        if not missing:
            ends.enter_context(_handlers(_taught))

    with (
        ExitStack() as ends,
        patched(*_overrides_patches()),
        once_imported("torch._dynamo", teach),
    ):
        try:
            yield
        finally:
            _restore_late_imports()


def _restore_late_imports() -> None:
    """Give torch's own functions to modules that were imported meanwhile, and took ours."""
    for module, name, found in held(*OVERRIDE_QUESTIONS):
        ask, asked = _question(name)
        if found is asked:
            setattr(module, name, ask)


@contextmanager
def _handlers(changed: Callable[[Handlers], Handlers]) -> Iterator[None]:
    """Have dynamo trace single functions of torch in a way of ours.

    They are changed when dynamo asks for them: listing them counts the devices, for which CUDA is
    started.
    """
    functions: Any = private("torch._dynamo.variables.torch:TorchInGraphFunctionVariable")
    with patched((functions, "_get_handlers", lambda listed: cache(lambda: changed(listed())))):
        yield


def _taught(handlers: Handlers) -> Handlers:
    """Dynamo traces what stands in for functions of torch as it traces those, then and later."""
    for name in OVERRIDE_QUESTIONS:
        ask, asked = _question(name)
        trace = handlers.get(ask) or handlers[asked]  # those are listed that torch holds just now
        handlers[ask] = handlers[asked] = trace
        private("torch._dynamo:allow_in_graph")(asked)
    return handlers


def _is_path(asking: str) -> bool:
    """Whether code of the module `asking` takes another path if it is told that it is traced."""
    return asking in PATHS_BY_TRACING or not (asking == "torch" or asking.startswith(_MACHINERY))


@contextmanager
def tracing_as_uncaptured(is_ours: Callable[[], bool]) -> Iterator[None]:
    """Have dynamo tell the program that it is not traced, where it is for us alone: `is_ours`."""
    states = private("torch._dynamo.variables.torch:tracing_state_functions")()
    build = private("torch._dynamo.variables.base:VariableTracker").build

    def answered(told: Callable[..., Any]) -> Callable[..., Any]:
        def answer(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if is_ours() and _is_path(str(tx.f_globals.get("__name__", ""))):
                return build(tx, False)
            return told(variable, tx, *args, **kwargs)

        return answer

    def changed(handlers: Handlers) -> Handlers:
        ours = {ask: answered(handlers[ask]) for ask, state in states.items() if state}
        if not torch.cuda.is_available():  # where torch takes this for an op, and fails at it
            ours[torch.cuda.is_current_stream_capturing] = lambda _, tx: build(tx, False)
        return {**handlers, **ours}

    with _handlers(changed):
        yield
