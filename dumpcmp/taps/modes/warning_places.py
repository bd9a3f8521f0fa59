"""Has warnings name the lines of the program that they name without a capture."""

from __future__ import annotations

import dis
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from dumpcmp.pytorch.names import patched

_HAND_OVER = "handle_torch_function"
_RESUMED = "torch_dynamo_resume_in_"  # names of the parts of a function behind a graph break
# Modules of torch that call us, or that we call to run the program.
_AROUND_OURS = ("torch.overrides", "torch.fx.interpreter", "torch._dynamo.eval_frame")
_TRACERS = ("_dynamo", "_guards", "_inductor", "_logging", "_subclasses", "_functorch", "fx")
_PLACES = re.compile(r'File "(.+)", line (\d+), in (.+)')
_CALL = nn.Module.__call__.__code__  # which calls a module in two ways, the last as it is
_PACKAGE = str(Path(__file__).parents[2])
_AT_A_PLACE = (lambda placed, args, kwargs: placed(*args, **kwargs)).__code__


class _Tracing(threading.local):
    """Whether this thread traces for us, and whether the program's code warned meanwhile."""

    is_on = False
    has_warned = False


_tracing = _Tracing()


@contextmanager
def warnings_as_uncaptured() -> Iterator[None]:
    """Have `warnings.warn` count the frames that there are without a capture.

    A function of torch that is written in Python calls itself again for a mode, so that a warning
    that names its caller would name torch.
    """

    def standing_in(original: Callable[..., None]) -> Callable[..., None]:
        def warn(
            message: Any,
            category: Any = None,
            stacklevel: int = 1,
            source: Any = None,
            **more: Any,
        ) -> None:
            caller = sys._getframe(1)
            if _tracing.is_on:  # the program did not warn yet
                _tracing.has_warned |= not _is_tracer(caller)
                return
            level = stacklevel + 1 + (_num_added(caller, stacklevel) if stacklevel > 1 else 0)
            named = _frame_at(level)
            if named is not None and named.f_code is _CALL and not more:
                _warn_at_call(message, category, named, source)
            else:
                original(message, category, level, source, **more)

        warn._torchdynamo_disable = True  # type: ignore[attr-defined]
        return warn

    with patched((warnings, "warn", standing_in)):
        yield


def _frame_at(level: int) -> FrameType | None:
    """The frame that a warning of whoever calls this would name by `level`."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(level - 1):
        frame = frame.f_back if frame is not None else None
    return frame


def _warn_at_call(message: Any, category: Any, named: FrameType, source: Any) -> None:
    """Warn of what names the call of a module: at the line that calls it without a capture."""
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    line = max(line for *_, line in _CALL.co_lines() if line)
    registry = named.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, kind, _CALL.co_filename, line, _module_of(named), registry, source=source
    )


@contextmanager
def traced_in_silence() -> Iterator[None]:
    """Let nobody hear what this thread warns of while it traces; `has_warned` tells of it.

    Tracing runs ops without values: what they warn of is said when they run. Other threads go on
    warning.
    """
    of_others: list[tuple[Any, Any, str, int]] = []
    mine = threading.get_ident()

    def hear(message: Any, category: Any, filename: str, lineno: int, *_: Any, **__: Any) -> None:
        if threading.get_ident() == mine:
            _tracing.has_warned = True  # by an op in C++: those of Python do not come here
        else:
            of_others.append((message, category, filename, lineno))

    outer, _tracing.is_on, _tracing.has_warned = _tracing.is_on, True, False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else what is said once would have been said
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = hear
            yield
    finally:
        torch.set_warn_always(always)
        _tracing.is_on, _tracing.has_warned = outer, False
        for warned in of_others:
            warnings.warn_explicit(*warned)


def has_warned() -> bool:
    """Whether the program's code has warned since this thread began to trace."""
    return _tracing.has_warned


def _is_tracer(frame: FrameType) -> bool:
    """Whether `frame` is of what traces programs, and not of what they call."""
    words = _module_of(frame).split(".")
    return words[0] == "torch" and len(words) > 1 and words[1] in _TRACERS


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _num_added(caller: FrameType, stacklevel: int) -> int:
    """The frames that a capture has added among the first `stacklevel` from `caller` upwards."""
    added, left = 0, stacklevel - 1
    inner, outer, is_new = caller, caller.f_back, False
    while outer is not None and left > 0:
        is_new = _is_added(inner, outer, is_new)
        added, left = (added + 1, left) if is_new else (added, left - 1)
        inner, outer = outer, outer.f_back
    return added


def _is_added(inner: FrameType, outer: FrameType, is_inner_added: bool) -> bool:
    """Whether `outer`, which called `inner`, would not be there without a capture."""
    here, above = inner.f_code, outer.f_code
    if _is_ours(outer) or (is_inner_added and _module_of(outer) in _AROUND_OURS):
        return True
    if above is here or (is_inner_added and here.co_name == _HAND_OVER):
        return outer.f_lasti in _calls_that_hand_over(above)
    return here.co_name.startswith(_RESUMED) and above.co_filename == here.co_filename


def _is_ours(frame: FrameType) -> bool:
    return _module_of(frame).partition(".")[0] == "dumpcmp"


@cache
def _calls_that_hand_over(code: CodeType) -> frozenset[int]:
    """Where `code` gives its call to whatever overrides torch functions, as `f_lasti` tells it."""
    starts: set[tuple[int | None, int | None]] = set()
    found: set[int] = set()
    for one in dis.get_instructions(code):
        at = (one.positions.lineno, one.positions.col_offset) if one.positions else (None, None)
        if one.argval == _HAND_OVER:
            starts.add(at)
        elif one.opname.startswith("CALL") and at in starts:
            found.add(one.offset)
    return frozenset(found)


@lru_cache(maxsize=1 << 14)
def place_of(stack_trace: str | None) -> Callable[..., Any] | None:
    """What calls a function from the line of the program that the node of a graph stands for.

    An op in C++ that warns names the line of the frame that called it.
    """
    lines = _PLACES.findall(stack_trace or "")
    own = [place for place in lines if not place[0].startswith(_PACKAGE)]  # dynamo reads our mode
    if not own:
        return None
    file, line, name = own[-1]
    code = _AT_A_PLACE.replace(co_filename=file, co_firstlineno=int(line), co_name=name)
    return FunctionType(code, _globals_of(file))


def _globals_of(file: str) -> dict[str, Any]:
    """The names of the module in `file`, where Python notes what it has warned of."""
    for module in tuple(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return vars(module)
    return {"__name__": file}
