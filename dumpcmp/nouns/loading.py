"""Finds what users name as ``pkg.mod:function``."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dumpcmp.nouns.errors import SelectionError


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
