"""What users write on command lines: functions as ``pkg.mod:function``, sizes as ``20G``."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dumpcmp.nouns.errors import SelectionError

LEVELS = ("all", "layout", "extended", "basic", "off")  # of ONNX Runtime's graph optimisation


def load(option: str, name: str) -> Any:
    """What ``pkg.mod:function`` names, as `option` was given it; the working directory counts."""
    module, _, attribute = name.partition(":")
    hint = "write pkg.mod:function; it must be importable from the working directory"
    if not attribute:
        raise SelectionError(f"{option} {name!r} names no function", hint=hint)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SelectionError(f"{option} {name}: {error}", hint=hint) from error


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_nbytes(text: str) -> int:
    """Read ``"20G"``, ``"512M"`` or ``"1000"`` as bytes."""
    number, unit = text.strip().removesuffix("B").removesuffix("i"), 1
    if number and number[-1].upper() in _UNITS:
        number, unit = number[:-1], _UNITS[number[-1].upper()]
    try:
        nbytes = int(float(number) * unit)
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes <= 0:
        raise SelectionError(
            f"cannot read {text!r} as a size", hint="write it as 512M, 20G or 1.5T"
        )
    return nbytes


def readable(nbytes: int) -> str:
    """`nbytes` with a unit: ``4.2 MB``."""
    size = float(nbytes)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
