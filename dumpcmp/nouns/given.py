"""The arguments of a recorded call, read from their JSON: plain values, and what stands for others.

Lists, tuples and sizes are tuples here; devices, strides and memory formats are left out, because
they decide where a result lies and not what it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Call

_Told = TypeVar("_Told")


class Stand(Enum):
    """What stands in the place of an argument that is no plain value."""

    TENSOR = "a tensor"
    UNKNOWN = "something that was not recorded"
    PLACE = "a device, a layout or a memory format"


class DtypeWord(NamedTuple):
    """A dtype as an argument."""

    name: str


class Bounds(NamedTuple):
    """A slice as an argument."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True, slots=True)
class CallInputs:
    """What a call was given, tensors by their slots only."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    autocast: tuple[str, ...] = ()  # dtypes that autocast was computing in


def parsed(text: str) -> dict[str, Any]:
    """The arguments that `text` tells of, as their JSON does; ValueError where it tells of none."""
    tree = json.loads(text) if text else {}
    is_tree = isinstance(tree, dict) and isinstance(tree.get("args", []), list)
    if not is_tree or not isinstance(tree.get("kwargs", {}), dict):
        raise ValueError(f"{text!r} are no arguments")
    return dict(tree)


def told_by(call: Call, read: Callable[[str], _Told]) -> _Told:
    """What `read` makes of the arguments of `call`, which must be what a capture writes."""
    try:
        return read(call.arguments)
    except (ValueError, RecursionError):
        raise damaged_arguments(call) from None


def argument_tree(call: Call) -> dict[str, Any]:
    """The arguments of `call` as their JSON tells them; empty where it tells of none."""
    return told_by(call, parsed)


def differing(golden: Any, target: Any, kind: type[_Told]) -> list[tuple[_Told, _Told]] | None:
    """The numbers of one kind in which two argument trees differ; None where anything else does."""
    if isinstance(golden, dict) and isinstance(target, dict) and golden.keys() == target.keys():
        parts = [differing(golden[word], target[word], kind) for word in golden]
    elif isinstance(golden, list) and isinstance(target, list) and len(golden) == len(target):
        parts = [differing(*both, kind) for both in zip(golden, target, strict=True)]
    elif golden == target:
        return []
    else:
        return [(golden, target)] if type(golden) is kind and type(target) is kind else None
    known = [part for part in parts if part is not None]
    return [*chain(*known)] if len(known) == len(parts) else None


def damaged_arguments(call: Call) -> ArchiveError:
    """The error of a call whose arguments are not what a capture writes."""
    return ArchiveError(
        f"{call.site.place}: its arguments are damaged: {call.arguments[:80]!r}",
        hint="dumpcmp audit says which part of the archive has them",
    )


@lru_cache(maxsize=4096)
def read_arguments(text: str) -> CallInputs | None:
    """The arguments that `text` tells of; None where there is no telling."""
    if not text:
        return None
    try:
        tree = json.loads(text)
        args = tuple(_read(value) for value in tree.get("args", ()))
        kwargs = {str(word): _read(value) for word, value in tree.get("kwargs", {}).items()}
        return CallInputs(args, kwargs, tuple(sorted(set(tree.get("autocast", {}).values()))))
    except (ValueError, TypeError, AttributeError, RecursionError):  # an archive may hold anything
        return None


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    kind, inside = next(iter(value.items()), ("", None))
    return _READ[kind](inside, value) if kind in _READ else Stand.UNKNOWN


def _read_object(kind: str, value: Mapping[str, Any]) -> Any:
    """A sequence of some other class as its parts; any other object is not known."""
    parts = value.get("parts") or {}
    is_sequence = kind.endswith(("immutable_list", "namedtuple")) or "list" in kind.lower()
    if is_sequence and list(parts) == [str(i) for i in range(len(parts))]:
        return tuple(map(_read, parts.values()))
    return Stand.UNKNOWN


_READ: dict[str, Callable[..., Any]] = {
    "slot": lambda *_: Stand.TENSOR,
    "tuple": lambda inside, _: tuple(map(_read, inside)),
    "size": lambda inside, _: tuple(map(_read, inside)),
    "slice": lambda inside, _: Bounds(*map(_read, inside)),
    "dtype": lambda inside, _: DtypeWord(inside),
    "device": lambda *_: Stand.PLACE,
    "layout": lambda *_: Stand.PLACE,
    "memory_format": lambda *_: Stand.PLACE,
    "ellipsis": lambda *_: Ellipsis,
    "float": lambda inside, _: float(inside),
    "complex": lambda inside, _: complex(*inside),
    "dict": lambda inside, _: {word: _read(each) for word, each in inside.items()},
    "object": _read_object,
}


def is_number(value: Any) -> bool:
    """Whether `value` is a number that is no truth value."""
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def spelled_argument(value: Any) -> str:
    """`value` as a reader writes it: numbers with five digits, more where those are the same."""
    if isinstance(value, Stand):
        return value.value
    if isinstance(value, DtypeWord):
        return value.name
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else str(value)
    if isinstance(value, Bounds):
        words = ["" if each is None else str(each) for each in value]
        return ":".join(words if value.step is not None else words[:2])
    if isinstance(value, tuple) and len(value) == 1:
        return spelled_argument(value[0])
    if isinstance(value, tuple):
        return f"[{', '.join(map(spelled_argument, value))}]"
    return "..." if value is Ellipsis else repr(value)
