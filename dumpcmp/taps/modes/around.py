"""Runs the program's calls with the capture's work before and after them.

In C no frame of Python stands around such a call, so that the program can recurse as deeply as it
can without a capture. Where that was not built there are a few.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from dumpcmp.nouns.built import built
from dumpcmp.pytorch.imports import held
from dumpcmp.pytorch.names import (
    PROXY_MODE,
    PrivateName,
    dispatch_mode,
    fx_tracing,
    jit_tracing_state,
    num_function_modes,
    patch,
    patched,
    private,
)
from dumpcmp.taps.modes import callables

Instead = tuple[Any]  # what the program gets in place of a result
After = Callable[[Any, BaseException | None], Instead | None]  # told the result, or what was raised
RunPlan = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], After | None]
PlanCall = Callable[[Any, tuple[Any, ...], dict[str, Any]], RunPlan]

_core: Any = built("dumpcmp.taps.modes._around")
_plan: Any = built("dumpcmp.taps.recording._plan")
# What the call that torch gives to a mode takes of the limit of recursion, while it runs again: its
# own, and beneath the dispatcher the object, the frame and the function by which an op is called.
# Calls that are no frames count before Python 3.12.
OF_FUNCTIONS = 1 if sys.version_info < (3, 12) else 0
OF_OPS = 3 if sys.version_info < (3, 12) else 1
_FRAMES_OF_TORCH = 50  # that it may take before it gives an op to a mode
_RULES = "torch._library.simple_registry:find_torch_dispatch_rule"
_HAND_OVER = "handle_torch_function"


class Around:
    """A call of the program: `before` is told `bound` and the arguments, and plans the rest."""

    __slots__ = ("before", "bound")

    def __init__(self, before: PlanCall, bound: Any) -> None:
        self.before, self.bound = before, bound

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return carried_out(work(self.before, self.bound, args, kwargs))


_hiding: list[Callable[[Any], Any]] = []  # what sets dynamo's callback for frames, once it is there


def hide_from_dynamo() -> None:
    """Have dynamo, which has just been imported, not look at the capture's own work."""
    set_callback: Callable[[Any], Any] = private("torch._C._dynamo.eval_frame:set_eval_frame")
    _hiding[:] = [set_callback]
    for core in (_core, _plan):
        if core is not None:
            core.hide_by(set_callback)


class _Hidden(threading.local):
    callback: Any = None


_hidden = _Hidden()


def hidden_callback() -> Any:
    """What would look at frames that begin now, did the capture not work on this thread."""
    return _hidden.callback if _core is None else _core.hidden()


def hide() -> Any:
    """Begin work that dynamo does not look at; gives what `show` needs."""
    before = _hiding[0](None) if _hiding else None
    if before is not None:
        _hidden.callback = before
    return before


def show(before: Any) -> None:
    """Let dynamo look at what follows, if it did before."""
    if before is not None:
        _hidden.callback = None
        _hiding[0](before)


def work(run: Callable[..., Any], *args: Any) -> Any:
    """Do work of the capture's own, which nobody traces."""
    before = hide()
    try:
        return run(*args)
    finally:
        show(before)


def carried_out(plan: RunPlan) -> Any:
    """Run what was planned."""
    run, args, kwargs, after = plan
    if after is None:
        return run(*args, **kwargs)
    try:
        result = run(*args, **kwargs)
    except BaseException as error:
        work(after, None, error)
        raise
    before = hide()
    try:
        instead = after(result, None)
    finally:
        show(before)
    return result if instead is None else instead[0]


# What is called in place of a function of the program: made of what plans it, and what is bound.
around: Callable[[PlanCall, Any], Callable[..., Any]] = Around if _core is None else _core.Around


def deeper(run: Callable[..., Any], by: int) -> Callable[..., Any]:
    """`run`, with so many frames of ours in it that do not count against the program's."""
    return run if _core is None else partial(_core.Deeper(by), run)


if _core is not None:
    _core.set_up(
        jit_tracing_state, dispatch_mode, PROXY_MODE, fx_tracing, torch.compiler,
        callables.is_traced, torch._C._is_torch_function_mode_enabled, num_function_modes,
        private("torch._C:_get_function_stack_at"), private("torch._C:_pop_torch_function_stack"),
        private("torch._C:_push_on_torch_function_stack"),
    )  # fmt: skip


def answer_in_c(mode: Any, name: str, extra: int, follows: bool) -> None:
    """Have torch call C for the method `name` of `mode`, which asks its `begin` for a RunPlan.

    Calls that the step of a mode knows, which `follows` one, are recorded without asking.
    """
    if _core is not None:
        setattr(mode, name, _core.ModeCall(mode, getattr(type(mode), name), extra, follows))


@contextmanager
def handed_over_in_c() -> Iterator[None]:
    """Have torch's functions of Python give their calls to our mode without frames in between."""
    original = getattr(torch.overrides, _HAND_OVER)
    if _core is None:
        yield
        return
    ours = _core.HandOver(original)
    holders = [module for module, _, found in held(_HAND_OVER) if found is original]
    with patched(*((module, _HAND_OVER, partial(_instead, ours)) for module in holders)):
        try:
            yield
        finally:
            for module, _, found in held(_HAND_OVER):
                if found is ours:  # it was imported meanwhile
                    setattr(module, _HAND_OVER, original)


@contextmanager
def ops_given_in_c() -> Iterator[None]:
    """Have torch look for rules of ops, which it does for a mode alone, at whatever depth."""
    if _core is None or not PrivateName(_RULES, "").is_there:
        yield
        return
    with patched(patch(_RULES, lambda original: deeper(original, _FRAMES_OF_TORCH))):
        yield


def _instead(ours: Any, original: Any) -> Any:
    del original
    return ours
