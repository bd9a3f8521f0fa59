"""Nested arguments and results: their parts by name, and the tensors in them under dotted paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.pytorch.names import SUPPORTED_NODES

PLAIN = (
    bool, int, float, complex, str, bytes, set, frozenset, range, slice, type(None), type, Enum,
    type(Ellipsis), torch.dtype, torch.device,
)  # fmt: skip
_OPAQUE = (nn.Module, FunctionType, ModuleType, *PLAIN)
_SHARED_FREELY = (list, tuple, dict, deque)  # which cannot be part of themselves by accident


Slots = list[tuple[str, Tensor]]  # ("input.0.mask", the tensor) in order

_SINGLE = (int, float, str, bool, type(None), torch.dtype, torch.device, slice, type(Ellipsis))


def slots_of(prefix: str, value: object) -> Slots:
    """The tensors in `value`: a lone one is ``prefix.0``, nested ones have dotted names."""
    if isinstance(value, Tensor):
        return [(prefix + ".0", value)]
    found: Slots = []
    _flatten(prefix, value, found)
    return found


def _flatten(name: str, tree: object, found: Slots) -> None:
    """Add the tensors inside of `tree`, however deep; what holds itself is opened once."""
    opened = [(name, tree, _opened(tree))]
    inside = {id(tree)}  # all of `opened`
    while opened:
        name, tree, parts = opened[-1]
        for word, child in parts:
            if isinstance(child, Tensor):
                found.append((f"{name}.{word}", child))
            elif not isinstance(child, _SINGLE) and id(child) not in inside:
                opened.append((f"{name}.{word}", child, _opened(child)))
                inside.add(id(child))
                break
        else:
            opened.pop()
            inside.discard(id(tree))


def _opened(tree: object) -> Iterator[tuple[object, object]]:
    return iter(() if isinstance(tree, _SINGLE) else safe_parts(tree) or ())


def safe_parts(tree: object) -> list[tuple[object, object]] | None:
    """The same as `parts_of`; None also where the container's own code fails at it."""
    try:
        parts = parts_of(tree)
        return None if parts is None else list(parts)
    except Exception:  # whatever it is: the program has not asked, and goes on
        return None


def parts_of(tree: object) -> Iterable[tuple[object, object]] | None:
    """The parts of a container by name or position, as its type arranges them; None for a leaf."""
    if isinstance(tree, list | tuple | deque):
        return enumerate(tree)
    if isinstance(tree, Mapping):
        return tree.items()
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    if type(tree) in SUPPORTED_NODES:
        return enumerate(SUPPORTED_NODES[type(tree)].flatten_fn(tree)[0])
    return None


def attributes_of(tree: Any) -> Iterable[tuple[object, object]] | None:
    """The parts of any object that has some: of a named tuple its fields, else its attributes."""
    if isinstance(tree, _OPAQUE):
        return None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, Mapping | list | tuple | deque) or is_dataclass(tree):
        return parts_of(tree)
    return list(vars(tree).items()) if hasattr(tree, "__dict__") else None


def leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each leaf of `tree` with its dotted path: ``output.past.0.keys`` for a cache in a result.

    Objects are opened by their attributes, and each where it is met first, so that those which
    hold themselves, or each other, have an end.
    """
    yield from _leaves(tree, path, set())


def tensors_in(tree: Any, path: str = "") -> dict[str, Tensor]:
    """The tensors among the leaves of `tree`, by path."""
    return {name: leaf for name, leaf in leaves(tree, path) if isinstance(leaf, Tensor)}


def _leaves(tree: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    parts = None if isinstance(tree, Tensor) else attributes_of(tree)
    if parts is None:
        yield path, tree
        return
    if type(tree) not in _SHARED_FREELY:
        if id(tree) in seen:
            return
        seen.add(id(tree))
    for name, part in parts:
        yield from _leaves(part, f"{path}.{name}" if path else str(name), seen)
