"""What is written down of a call: its slots, its arguments so that it can be rerun, its line."""

import json
import math
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.trees import Slots, safe_parts, slots_of

_DEEPEST = 100  # levels of containers that are written down: a replay reads less

# What torch makes of a type of Python where it takes a dtype: ``torch.zeros(2, dtype=float)``.
_PYTHON_DTYPES = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}


def arguments_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], positions: Mapping[str, int]
) -> tuple[Slots, str]:
    """The input slots of a call, and its argument tree as JSON with slots in place of tensors.

    A keyword that `positions` knows gets the slot of its position, so that ``f(x, w)`` and
    ``f(x, weight=w)`` have the same slots.
    """
    found: Slots = []
    listed = [_written(f"input.{i}", value, found, ()) for i, value in enumerate(args)]
    if not kwargs:
        return found, f'{{"args":[{",".join(listed)}]}}'
    named = []
    for word, value in kwargs.items():
        name = f"input.{positions.get(word, word)}"
        named.append(f"{json.dumps(word)}:{_written(name, value, found, ())}")
    return found, f'{{"args":[{",".join(listed)}],"kwargs":{{{",".join(named)}}}}}'


def function_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], positions: Mapping[str, int]
) -> tuple[Slots, str]:
    """The same of a function, with the autocast that it runs under."""
    found, arguments = arguments_of(args, kwargs, positions)
    if torch._C._is_any_autocast_enabled():
        arguments = f'{arguments[:-1]},"autocast":{_autocast()}}}'
    return found, arguments


def _autocast() -> str:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    words = (f'"{k}":"{str(torch.get_autocast_dtype(k)).removeprefix("torch.")}"' for k in kinds)
    return f"{{{','.join(words)}}}"


_Containers = tuple[object, ...]  # the containers that a value is in


def _written(name: str, value: object, found: Slots, inside: _Containers) -> str:
    """`value` as JSON; its tensors are appended to `found`."""
    if isinstance(value, Tensor):
        found.append((name, value))
        return f'{{"slot":"{name}"}}' if '"' not in name else json.dumps({"slot": name})
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float:
        return _written_float(value)  # type: ignore[arg-type]
    if kind is str:
        return json.dumps(value)
    if len(inside) >= _DEEPEST or any(value is each for each in inside):
        if len(inside) >= _DEEPEST:
            found += slots_of(name, value)
        return _written_type(value)
    if kind is list:
        return f"[{_listed(name, value, found, (*inside, value))}]"  # type: ignore[arg-type]
    return _written_special(name, value, found, inside)


def _listed(name: str, values: Iterable[object], found: Slots, inside: _Containers) -> str:
    each = [_written(f"{name}.{i}", value, found, inside) for i, value in enumerate(values)]
    return ",".join(each)


def _written_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'{{"float":"{value}"}}'


def _written_special(name: str, value: object, found: Slots, inside: _Containers) -> str:
    """What JSON has no word for, as an object with one key that says what it is."""
    if isinstance(value, tuple):
        word = "size" if isinstance(value, torch.Size) else "tuple"
        return f'{{"{word}":[{_listed(name, value, found, (*inside, value))}]}}'
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return f'{{"{type(value).__name__}":"{str(value).removeprefix("torch.")}"}}'
    if isinstance(value, type) and value in _PYTHON_DTYPES:
        return f'{{"dtype":"{_PYTHON_DTYPES[value]}"}}'
    if isinstance(value, slice):
        bounds = _listed(name, (value.start, value.stop, value.step), found, inside)
        return f'{{"slice":[{bounds}]}}'
    if value is Ellipsis:
        return '{"ellipsis":true}'
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _written_float(float(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _written_symbol(value)
    if isinstance(value, complex):
        return f'{{"complex":[{value.real!r},{value.imag!r}]}}'
    return _written_object(name, value, found, inside)


def _written_symbol(value: torch.SymInt | torch.SymFloat) -> str:
    """A number that is known; to ask for that of a variable would bind the graph to it."""
    number = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
    return _written_type(value) if number is None else str(number)


def _written_type(value: object) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f'{{"object":{json.dumps(kind)}}}'


def _written_object(name: str, value: object, found: Slots, inside: _Containers) -> str:
    """A container by its parts; any other object by its type, since it cannot be made again."""
    children = safe_parts(value) or ()
    if not children and not isinstance(value, (Mapping, list)):
        return _written_type(value)
    parts = ",".join(
        f"{json.dumps(str(word))}:{_written(f'{name}.{word}', child, found, (*inside, value))}"
        for word, child in children
    )
    if type(value) is dict:
        return f'{{"dict":{{{parts}}}}}'
    return f'{_written_type(value)[:-1]},"parts":{{{parts}}}}}'


_OURS = Path(__file__).parents[2]
_FOREIGN = (str(Path(torch.__file__).parent), str(_OURS), "<frozen", "<string>")
_EMBEDDED = str(_OURS / "demo.py")  # the model that stands for a user's
_TRACE = re.compile(r'File "([^"]+)", line (\d+)')

FOREIGN: dict[str, bool] = {}  # by file: code that dynamo made may have no hash
_lines: dict[tuple[str, int], str] = {}


def current_line() -> str:
    """``"model.py:31"`` for the frame that is running now, or nothing where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        foreign = FOREIGN.get(name)
        if foreign is None:
            foreign = FOREIGN[name] = _is_foreign(name)
        if not foreign:
            return _line(name, frame.f_lineno)
        frame = frame.f_back
    return ""


def current_place() -> tuple[str, int] | None:
    """The file and the number of that line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and FOREIGN.get(frame.f_code.co_filename, True):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def traceback_line(trace: TracebackType | None) -> str:
    """The line of the program that an exception comes from: the innermost of its traceback."""
    found = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not _is_foreign(name):
            found = _line(name, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _is_foreign(filename: str) -> bool:
    return filename.startswith(_FOREIGN) and filename != _EMBEDDED


def _line(name: str, number: int) -> str:
    known = _lines.get((name, number))
    if known is None:
        known = _lines[name, number] = f"{_short(name)}:{number}"
    return known


@lru_cache(maxsize=4096)
def traced_line(stack_trace: str | None) -> str:
    """The same for a graph node, whose stack trace is text with the innermost frame last."""
    for name, number in reversed(_TRACE.findall(stack_trace or "")):
        if not _is_foreign(name):
            return f"{_short(name)}:{number}"
    return ""


@lru_cache(maxsize=4096)
def _short(filename: str) -> str:
    """`filename` below the working directory, or its last three components."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return "/".join(path.parts[1:][-3:]) if path.is_absolute() else filename


def thread_name() -> str:
    """The thread that runs now, by name; the main one is not told."""
    if threading.get_ident() == threading.main_thread().ident:
        return ""
    return threading.current_thread().name
