"""Compiled code, where it was built and is not older than its sources."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)


def built(name: str) -> ModuleType | None:
    """The compiled module `name`; None where there is none, or a source of it has changed since.

    Whoever asks computes the same without it, only slower. A checkout that is used in place has
    the sources beside it, and may have been brought up to date without being built again.
    """
    try:
        module = import_module(name)
    except ModuleNotFoundError:  # for want of a C compiler
        return None
    except ImportError as error:
        said = f"{name} was built, and cannot be loaded: {error}"
        warnings.warn(f"{said}; all goes on without it, slower: build it again", stacklevel=2)
        return None
    return None if module.__file__ and _is_older(Path(module.__file__)) else module


def _is_older(binary: Path) -> bool:
    built_at = binary.stat().st_mtime
    source = binary.with_name(f"{binary.name.partition('.')[0]}.c")
    return any(path.stat().st_mtime > built_at for path in _sources(source))


def _sources(source: Path) -> set[Path]:
    """`source` and the headers that it includes by name, and theirs; empty where there is none."""
    found: set[Path] = set()
    left = [source]
    while left:
        path = left.pop().resolve()
        if path not in found and path.exists():
            found.add(path)
            left += [path.parent / name.decode() for name in _INCLUDE.findall(path.read_bytes())]
    return found
