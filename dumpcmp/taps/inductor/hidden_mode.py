"""Keeps the mode that records between graphs out of dynamo's sight.

Under a function mode dynamo traces another graph: operators become methods, and every line is one
of the mode's. So the mode leaves the stack while a frame is compiled, and guards look past it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

from dumpcmp.pytorch.names import num_function_modes, patched, private, standing_in
from dumpcmp.taps.modes.function_mode import FunctionMode

_MANAGER = "torch._dynamo.variables.torch_function:TorchFunctionModeStackStateManager"
_GUARDS, _UTILS = "torch._dynamo.guards", "torch._dynamo.utils"

Placed = tuple[int, FunctionMode]  # a mode of ours, and where on the stack it is


class _Removed(threading.local):
    """What was taken off this thread's stack, by compilation."""

    def __init__(self) -> None:
        self.modes: list[list[Placed]] = []


_removed = _Removed()


@contextmanager
def mode_hidden_from_dynamo() -> Iterator[None]:
    """Have dynamo trace and guard, while the block runs, as if no mode of ours were there."""
    with patched(
        standing_in(f"{_MANAGER}.__enter__", _begin_compiling),
        standing_in(f"{_MANAGER}.__exit__", _end_compiling),
        standing_in("torch._dynamo.convert_frame:trace_frame", _trace_under_others),
        standing_in(f"{_GUARDS}:GuardBuilder.TORCH_FUNCTION_STATE", _guard_others),
        standing_in(f"{_GUARDS}:get_torch_function_mode_stack_at", _mode_at),
        standing_in(f"{_UTILS}:get_torch_function_mode_stack_at", _mode_at),
        standing_in(f"{_UTILS}:set_torch_function_mode_stack", _set_others),
    ):
        yield


def _stack() -> list[Any]:
    at = private("torch._C:_get_function_stack_at")
    return [at(index) for index in range(num_function_modes())]


def _others() -> list[Any]:
    return [mode for mode in _stack() if not isinstance(mode, FunctionMode)]


def _replace_stack(modes: Sequence[Any]) -> None:
    pop, push = (private(f"torch._C:_{word}_torch_function_stack") for word in ("pop", "push_on"))
    for _ in range(num_function_modes()):
        pop()
    for mode in modes:
        push(mode)


def _ours() -> list[Placed]:
    return [(i, mode) for i, mode in enumerate(_stack()) if isinstance(mode, FunctionMode)]


def _with(ours: Sequence[Placed], others: Sequence[Any]) -> list[Any]:
    modes = list(others)
    for index, mode in ours:
        modes.insert(index, mode)
    return modes


def _begin_compiling(original: Callable[..., Any], manager: Any) -> Any:
    _removed.modes.append(_ours())
    if _removed.modes[-1]:
        _replace_stack(_others())
    return original(manager)


def _end_compiling(original: Callable[..., Any], manager: Any, *raised: Any) -> Any:
    result = original(manager, *raised)
    if ours := _removed.modes.pop():
        _replace_stack(_with(ours, _stack()))
    return result


def _trace_under_others(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Trace a frame under the user's modes alone: some versions read them before they are off."""
    bound = signature(original).bind(*args, **kwargs)
    modes = bound.arguments["tf_mode_stack"]
    bound.arguments["tf_mode_stack"] = [m for m in modes if not isinstance(m, FunctionMode)]
    return original(*bound.args, **bound.kwargs)


def _guard_others(_: Callable[..., Any], builder: Any, guard: Any) -> None:
    """Guard the types of the user's modes, wherever ours is when the code runs."""
    kinds = [type(mode) for mode in builder.check_fn_manager.torch_function_mode_stack]

    def holds(*_: Any) -> bool:
        return [type(mode) for mode in _others()] == kinds

    builder.check_fn_manager.torch_function_mode_stack_check_fn = holds
    said = ["___check_torch_function_mode_stack()"]
    builder.guard_manager.root.add_lambda_guard(holds, said, guard.user_stack)


def _mode_at(_: Callable[..., Any], index: int) -> Any:
    return _others()[index]


def _set_others(_: Callable[..., Any], modes: Sequence[Any]) -> None:
    """What generated code does where the program entered or left a mode inside of a graph."""
    _replace_stack(_with(_ours(), modes))
