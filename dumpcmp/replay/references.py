"""What users say that their own ops compute, and what ops of one device only do."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.replay.arguments import CallArguments, changed
from dumpcmp.replay.standins import grouped_mm

_F = TypeVar("_F", bound=Callable[..., Any])
_NAME = re.compile(r"\w[\w.-]*::\w+(\.\w+)?")
_OWN: set[str] = set()  # ops whose own kernels for CPUs are right
_REFERENCES: dict[str, Callable[..., Any]] = {
    "transformers::grouped_mm_fallback": grouped_mm,
}


def reference(name: str, *, own_kernel: bool = False) -> Callable[[_F], _F]:
    """Say what the custom op `name` computes, so that it can be run again in float64.

    The decorated function takes what the op takes, floating-point tensors in float64, and gives
    what it gives. It is plain PyTorch, and need not be fast:

        @dumpcmp.reference("mylib::scaled_add")
        def scaled_add(x, y, scale):
            return x + scale * y

    With `own_kernel` nothing is decorated: the op's own kernel for CPUs, or its decomposition, says
    what it computes where it ran on another device, as a kernel in Triton does:

        dumpcmp.reference("mylib::scaled_add", own_kernel=True)
    """
    if not _NAME.fullmatch(name):
        raise SelectionError(
            f"{name!r} is not the name of an op", hint='write it as torch does: "mylib::op"'
        )

    if own_kernel:
        _OWN.add(name)

    def register(function: _F) -> _F:
        _REFERENCES[name] = function
        return function

    return register


def reference_of(
    namespace: str, op: str, overload: str = "", ran_on: str = "cpu"
) -> Callable[..., Any] | None:
    """What was registered for an op, for this overload of it or for all.

    An op cannot vouch for itself: its own kernel for CPUs says nothing of what `ran_on` one.
    """
    names = f"{namespace}::{op}.{overload}", f"{namespace}::{op}"
    told = _REFERENCES.get(names[0]) or _REFERENCES.get(names[1])
    if told is not None or ran_on == "cpu" or not any(name in _OWN for name in names):
        return told
    packet = getattr(getattr(torch.ops, namespace, None), op, None)
    own = getattr(packet, overload or "default", None)
    return None if own is None else partial(_on_cpu, own)


def _on_cpu(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an op by its kernel for CPUs; what it gives out goes to where it was asked."""
    given = CallArguments(args, kwargs)
    where = next((tensor.device for tensor in given.tensors()), torch.device("cpu"))
    there = given.mapped(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf)
    found = own(*there.args, **there.kwargs)
    return changed(found, lambda leaf: leaf.to(where) if isinstance(leaf, Tensor) else leaf)
