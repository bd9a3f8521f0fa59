"""What users say that their own ops compute, and what ops of one device only do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.replay.standins import grouped_mm

_F = TypeVar("_F", bound=Callable[..., Any])
_NAME = re.compile(r"\w+::\w+(\.\w+)?")
_REFERENCES: dict[str, Callable[..., Any]] = {
    "transformers::grouped_mm_fallback": grouped_mm,
}


def reference(name: str) -> Callable[[_F], _F]:
    """Say what the custom op `name` computes, so that it can be run again in float64.

    The decorated function takes what the op takes, floating-point tensors in float64, and gives
    what it gives. It is plain PyTorch, and need not be fast:

        @dumpcmp.reference("mylib::scaled_add")
        def scaled_add(x, y, scale):
            return x + scale * y
    """
    if not _NAME.fullmatch(name):
        raise SelectionError(
            f"{name!r} is not the name of an op", hint='write it as torch does: "mylib::op"'
        )

    def register(function: _F) -> _F:
        _REFERENCES[name] = function
        return function

    return register


def reference_of(namespace: str, op: str, overload: str = "") -> Callable[..., Any] | None:
    """What was registered for an op, for this overload of it or for all."""
    return _REFERENCES.get(f"{namespace}::{op}.{overload}") or _REFERENCES.get(f"{namespace}::{op}")
