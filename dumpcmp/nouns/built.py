"""Compiled code, where it was built and is not older than its source."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType


def built(name: str) -> ModuleType | None:
    """The compiled module `name`; None where there is none, or its source has changed since.

    Whoever asks computes the same without it, only slower. A checkout that is used in place has
    the source beside it, and may have been brought up to date without being built again.
    """
    try:
        module = import_module(name)
    except ImportError:  # for want of a C compiler
        return None
    return None if module.__file__ and _is_older(Path(module.__file__)) else module


def _is_older(binary: Path) -> bool:
    source = binary.with_name(f"{binary.name.partition('.')[0]}.c")
    return source.exists() and source.stat().st_mtime > binary.stat().st_mtime
