"""The arguments of a recorded call: from the text in an archive to plain data and tensors.

The text is data, never a program: what is not on the short list below is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.value import DTYPES
from dumpcmp.replay.unreplayable import Unreplayable

DEEPEST = 16  # levels of nesting
LONGEST = 1 << 22  # characters of the text
_SHORT = 1024  # characters of a text that may come again
_MOST = 1 << 18  # parts, all together
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_LISTS = ("torch.fx.immutable_collections.immutable_list",)  # lists by another name
_USUAL = frozenset((Tensor, int, float, bool, str, type(None), torch.dtype))  # leaves
_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What a function is called with, tensors in place of their slots."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    autocast: dict[str, torch.dtype] = field(default_factory=dict)  # by device type
    _leaves: list[Any] | None = field(default=None, init=False, repr=False, compare=False)

    def mapped(self, change: Callable[[Any], Any]) -> CallArguments:
        """The same with `change` made to each leaf: each tensor, number, dtype or word."""
        args = tuple(changed(value, change) for value in self.args)
        kwargs = {word: changed(value, change) for word, value in self.kwargs.items()}
        return CallArguments(args, kwargs, self.autocast)

    def with_first(self, change: Callable[[Any], Any]) -> CallArguments:
        """The same with `change` made to the first argument."""
        first, *others = self.args
        return CallArguments((change(first), *others), self.kwargs, self.autocast)

    def leaves(self) -> list[Any]:
        """Each tensor, number, dtype and word, in order."""
        found = self._leaves
        if found is None:
            found = []
            self.mapped(found.append)
            object.__setattr__(self, "_leaves", found)  # asked for again and again
        return found

    def tensors(self) -> list[Tensor]:
        """The tensors among the leaves, in order."""
        return [leaf for leaf in self.leaves() if isinstance(leaf, Tensor)]


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` made to each of its leaves."""
    if value.__class__ in _USUAL:
        return change(value)
    if isinstance(value, list):
        return [changed(part, change) for part in value]
    if isinstance(value, tuple):
        parts = [changed(part, change) for part in value]
        whole = isinstance(value, torch.Size) and all(isinstance(part, int) for part in parts)
        return torch.Size(parts) if whole else tuple(parts)
    if isinstance(value, dict):
        return {word: changed(part, change) for word, part in value.items()}
    if isinstance(value, slice):
        return slice(*(changed(part, change) for part in (value.start, value.stop, value.step)))
    return change(value)


def read_arguments(text: str, given: Mapping[str, Tensor]) -> CallArguments:
    """The arguments that `text` tells, each slot filled with its tensor of `given`."""
    if len(text) > LONGEST:
        raise Unreplayable("its arguments are too many")
    tree = _tree(text) if len(text) <= _SHORT else _tree.__wrapped__(text)
    if not isinstance(tree, dict) or not isinstance(tree.get("args", None), list):
        raise Unreplayable("its arguments were not recorded")
    reading = _Reading(given)
    args = tuple(reading.built(part, 0) for part in tree["args"])
    named = tree.get("kwargs", {})
    return CallArguments(args, reading.named(named, 0), _autocast(tree.get("autocast", {})))


@lru_cache(maxsize=1024)
def _tree(text: str) -> Any:
    """What `text` holds; nobody writes to it, and the same calls come again in each step."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unreplayable("its arguments cannot be read") from None


def slots_in(text: str) -> list[str]:
    """The slots of the tensors that a call with these arguments takes."""

    class _Noting(dict[str, Tensor]):
        def __missing__(self, slot: str) -> Tensor:
            return self.setdefault(slot, torch.empty(0, device="meta"))

    noting = _Noting()
    read_arguments(text, noting)
    return list(noting)


class _Reading:
    """Builds arguments, and counts what it builds."""

    def __init__(self, given: Mapping[str, Tensor]) -> None:
        self.given = given
        self.count = 0

    def built(self, node: Any, depth: int) -> Any:
        self.count += 1
        if depth > DEEPEST or self.count > _MOST:
            raise Unreplayable("its arguments are too many")
        if isinstance(node, list):
            return [self.built(part, depth + 1) for part in node]
        if isinstance(node, dict):
            return self._special(node, depth + 1)
        return node

    def named(self, parts: Any, depth: int) -> dict[str, Any]:
        if not isinstance(parts, dict):
            raise Unreplayable("its arguments cannot be read")
        return {word: self.built(part, depth + 1) for word, part in parts.items()}

    def _special(self, node: dict[str, Any], depth: int) -> Any:
        """What JSON has no word for: an object whose one key says what it is."""
        if node.get("object") in _LISTS:
            return list(self.named(node.get("parts", {}), depth).values())
        if "object" in node:
            raise Unreplayable(f"it was given an object: {str(node['object'])[:80]}")
        if len(node) != 1:
            raise Unreplayable("its arguments cannot be read")
        ((word, inside),) = node.items()
        match word, inside:
            case "slot", str():
                return self._tensor(inside)
            case (("tuple" | "size" | "slice"), list()):
                return _sequence(word, [self.built(part, depth) for part in inside])
            case "dict", dict():
                return self.named(inside, depth)
            case "ellipsis", True:
                return Ellipsis
            case "complex", [int() | float() as real, int() | float() as imaginary]:
                return complex(real, imaginary)
            case _, str():
                return _word(word, inside)
        raise Unreplayable("its arguments cannot be read")

    def _tensor(self, slot: str) -> Tensor:
        try:
            return self.given[slot]
        except KeyError:
            raise Unreplayable(f"{slot} was not recorded whole") from None


def _sequence(word: str, parts: list[Any]) -> Any:
    if word == "tuple":
        return tuple(parts)
    if word == "size" and all(isinstance(part, int) for part in parts):
        return torch.Size(parts)
    if word == "slice" and len(parts) == 3:
        return slice(*parts)
    raise Unreplayable("its arguments cannot be read")


def _word(word: str, text: str) -> Any:
    if word == "float" and text in _FLOATS:
        return _FLOATS[text]
    if word == "dtype" and text in DTYPES:
        return getattr(torch, text)
    if word == "device":
        return torch.device("cpu")  # a replay runs where its tensors are
    if word == "layout" and text == "strided":
        return torch.strided
    if word == "memory_format" and text in _MEMORY_FORMATS:
        return getattr(torch, text)
    raise Unreplayable(f"it was given a {word} that is not known: {text[:80]!r}")


def _autocast(told: Any) -> dict[str, torch.dtype]:
    if not isinstance(told, dict) or not all(str(name) in DTYPES for name in told.values()):
        raise Unreplayable("its autocast cannot be read")
    return {str(device): getattr(torch, name) for device, name in told.items()}
