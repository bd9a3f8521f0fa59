"""The leaves of nested arguments and results, each under the path that names it."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

PLAIN = (
    bool, int, float, complex, str, bytes, set, frozenset, range, slice, type(None), type, Enum,
    torch.dtype, torch.device,
)  # fmt: skip
_OPAQUE = (nn.Module, FunctionType, ModuleType, *PLAIN)


def leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each leaf of `tree` with its dotted path: ``output.past.0.keys`` for a cache in a result.

    Containers are mappings, sequences, dataclasses and objects with attributes. An object is
    walked where it is met first, so that those which hold themselves, or each other, have an end.
    """
    yield from _leaves(tree, path, set())


def tensors_in(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The tensors among the leaves of `tree`, by path."""
    return {name: leaf for name, leaf in leaves(tree, path) if isinstance(leaf, torch.Tensor)}


def _leaves(tree: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    branches = None if isinstance(tree, torch.Tensor) else _branches(tree)
    if branches is None:
        yield path, tree
        return
    if _has_attributes(tree):
        if id(tree) in seen:
            return
        seen.add(id(tree))
    for name, branch in branches:
        yield from _leaves(branch, f"{path}.{name}" if path else str(name), seen)


def _has_attributes(tree: Any) -> bool:
    """Whether `tree` is an object rather than a builtin container, which may be shared freely."""
    return type(tree) not in (list, tuple, dict, deque)


def _branches(tree: Any) -> list[tuple[Any, Any]] | None:
    """What `tree` contains, by name; None if it is a leaf."""
    if isinstance(tree, _OPAQUE):
        return None
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple | deque):
        return list(enumerate(tree))
    if is_dataclass(tree):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    return list(vars(tree).items()) if hasattr(tree, "__dict__") else None
