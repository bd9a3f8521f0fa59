"""The user's source line that an op came from: the innermost frame outside torch and dumpcmp."""

import re
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

import torch

_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen", "<string>")
_EMBEDDED = str(Path(__file__).parents[1] / "demo.py")  # the model that stands for a user's
_TRACE = re.compile(r'File "([^"]+)", line (\d+)')

_foreign: dict[CodeType, bool] = {}
_lines: dict[tuple[CodeType, int], str] = {}


def current_line() -> str:
    """``"model.py:31"`` for the frame that is running now, or nothing where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        foreign = _foreign.get(code)
        if foreign is None:
            foreign = _foreign[code] = _is_foreign(code.co_filename)
        if not foreign:
            return _line(code, frame.f_lineno)
        frame = frame.f_back
    return ""


def _is_foreign(filename: str) -> bool:
    return filename.startswith(_FOREIGN) and filename != _EMBEDDED


def _line(code: CodeType, number: int) -> str:
    known = _lines.get((code, number))
    if known is None:
        known = _lines[code, number] = f"{_short(code.co_filename)}:{number}"
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
