"""Any object as a JSON tree: tensors by their slots, all else by value, bounded in size.

The words are those of `nouns/effects.py`. Nothing of the object is changed, and no code of the
program runs but what its containers iterate with and the `repr` of objects that have no value.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch
from torch import Tensor, nn

from dumpcmp.pytorch.names import SUPPORTED_NODES
from dumpcmp.pytorch.trees import Slots, parts_of

MOST_CHARACTERS = 4096  # of one text that are written; of a longer one a digest, too
MOST_BYTES = 1024
MOST_LISTED = 4096  # parts of one container that are written; of others a digest
MOST_PARTS = 65_536  # of a whole tree that are looked at
MOST_DEPTH = 64
MOST_ELEMENTS = 64  # of a numpy array that are written; a larger one is recorded as a value
MOST_TEXT = 1 << 18  # characters of a whole tree

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_HEAP_TYPE = 1 << 9  # among the flags of a type: it was made by a class statement
_VALUES = (Decimal, Fraction, UUID, PurePath, date, time, timedelta, tzinfo)  # told by their repr
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_TORCH_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_WIDEST = 8  # bytes of a number that Python has, too; of a complex one twice as many
Tree = Any  # what json writes


def without_addresses(text: str) -> str:
    """`text` without what differs from run to run: where objects lie in memory."""
    return _ADDRESS.sub("0x...", text)


def digest_of_text(text: str) -> str:
    """A digest by which equal texts are known."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def kind_of(value: object) -> str:
    """The type of `value` with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def told_of(tensor: Tensor) -> str:
    """The dtype and shape of `tensor`."""
    sizes = "nested" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def written(tree: Tree) -> str:
    """The arguments of a Call that has `tree` alone."""
    return json.dumps({"args": [tree]}, separators=(",", ":"))


class _FullError(Exception):
    """There are more parts than are written."""


class TreeWriter:
    """Writes one object.

    Tensors whose slot is among `recorded`, those of the root's outputs, are referred to as such.
    All others, and large arrays of numpy, are `found`: to be recorded as values of the effect
    itself. Where `keeps` is False they are only described. Objects without a value are told by
    their repr, unless `asks` is False.
    """

    def __init__(
        self, recorded: Collection[str] = (), keeps: bool = True, asks: bool = True
    ) -> None:
        self.found: Slots = []
        self._asks = asks
        self._recorded, self._keeps = recorded, keeps
        self._open: dict[int, str] = {}  # containers that are being written, and where they stand
        self._left = MOST_PARTS

    def tree(self, value: object, name: str = "output") -> Tree:
        """`value` as a tree; never raises."""
        found = len(self.found)
        try:
            is_lone = name == "output" and isinstance(value, (Tensor, np.ndarray))
            slot = f"{name}.0" if is_lone else name
            tree = self._tree(value, slot, True)
            if len(json.dumps(tree, separators=(",", ":"))) <= MOST_TEXT:
                return tree
            why = f"it takes more than {MOST_TEXT:,} characters"
        except _FullError:
            why = f"it has more than {MOST_PARTS:,} parts"
        except (Exception, RecursionError) as error:  # of the program's own containers
            why = f"{type(error).__name__} when it was looked at: {without_addresses(str(error))}"
        del self.found[found:]
        return {"unrecorded": why[:MOST_CHARACTERS], "type": kind_of(value)}

    def _tree(self, value: Any, name: str, seen_by_slots: bool) -> Tree:
        """`value`, which has the slot `name` if it is a tensor that `slots_of` sees."""
        self._left -= 1
        if self._left < 0:
            raise _FullError
        if isinstance(value, Tensor):
            return self._tensor(value, name, seen_by_slots)
        if value is None or value is True or value is False:
            return value
        if isinstance(value, np.generic):
            return _scalar(value)
        if isinstance(value, Enum):
            return {"enum": f"{kind_of(value)}.{value.name}"}
        if isinstance(value, (int, float, complex, str, bytes, bytearray)):
            return _plain(value)
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        special = _special(value)
        return self._container(value, name, seen_by_slots) if special is None else special

    def _tensor(self, tensor: Tensor, name: str, seen_by_slots: bool) -> Tree:
        if seen_by_slots and name in self._recorded:
            return {"root": name}
        if not self._keeps:
            return {"tensor": told_of(tensor)}
        self.found.append((name, tensor))
        return {"slot": name}

    def _array(self, array: Any, name: str) -> Tree:
        told: dict[str, Tree] = {"dtype": array.dtype.name, "shape": list(array.shape)}
        if not _is_numeric(array.dtype):
            return {"array": {**told, "items": self._listed(array.reshape(-1).tolist(), name)}}
        if array.size <= MOST_ELEMENTS:
            return {"array": {**told, "values": [_number(n) for n in array.reshape(-1).tolist()]}}
        tensor = _as_tensor(array)
        if tensor is None:
            digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16)
            return {"array": {**told, "digest": digest.hexdigest()}}
        tree = self._tensor(tensor, name, False)
        return {"array": {**told, **tree}} if "slot" in tree else tree

    def _container(self, value: Any, name: str, seen_by_slots: bool) -> Tree:
        if id(value) in self._open:
            return {"cycle": self._open[id(value)]}
        if len(self._open) >= MOST_DEPTH:
            return {"unrecorded": f"it is nested {MOST_DEPTH} deep", "type": kind_of(value)}
        self._open[id(value)] = name
        try:
            return self._opened(value, name, seen_by_slots)
        finally:
            del self._open[id(value)]

    def _opened(self, value: Any, name: str, seen: bool) -> Tree:
        kind = type(value)
        if isinstance(value, (set, frozenset)):
            parts = [self._tree(part, f"{name}.{i}", False) for i, part in enumerate(value)]
            return {"set": sorted(parts, key=json.dumps)}
        if kind is list:
            return self._listed(value, name, seen)
        if kind is torch.Size or kind is tuple:
            return {"size" if kind is torch.Size else "tuple": self._listed(value, name, seen)}
        if isinstance(value, Mapping):
            return self._mapping(value, name, seen)
        fields = getattr(value, "_fields", None) if isinstance(value, tuple) else None
        if fields is not None or isinstance(value, (list, tuple, deque)):
            names = fields if fields is not None else range(len(value))
            named = zip(names, enumerate(value), strict=False)
            return self._object(value, ((word, at, part) for word, (at, part) in named), name, seen)
        if is_dataclass(value) or kind in SUPPORTED_NODES:
            parts = [(word, word, part) for word, part in parts_of(value) or ()]
            return self._object(value, parts, name, seen)
        attributes = _attributes(value)
        if attributes is None or isinstance(value, nn.Module):
            return _opaque(value, self._asks)
        parts = [(word, word, part) for word, part in attributes.items()]
        return self._object(value, parts, name, seen_by_slots=False)

    def _object(
        self,
        value: Any,
        parts: Iterable[tuple[object, object, object]],
        name: str,
        seen_by_slots: bool,
    ) -> Tree:
        """An object by its parts: what each is called, what its slot is called, and itself."""
        written = {
            str(word): self._tree(part, f"{name}.{slot}", seen_by_slots)
            for word, slot, part in parts
        }
        return {"object": kind_of(value), "parts": written}

    def _mapping(self, value: Mapping[Any, Any], name: str, seen: bool) -> Tree:
        items = list(value.items())
        if type(value) is not dict:
            parts = [(key, key, part) for key, part in items]
            if all(isinstance(key, str) for key, _ in items):
                return self._object(value, parts, name, seen)
        if all(type(key) is str for key, _ in items) and len(items) <= MOST_LISTED:
            return {"dict": {k: self._tree(part, f"{name}.{k}", seen) for k, part in items}}
        return {"pairs": [self._pair(key, part, name, seen) for key, part in items]}

    def _pair(self, key: Any, part: Any, name: str, seen: bool) -> Tree:
        return [self._tree(key, name, False), self._tree(part, f"{name}.{key}", seen)]

    def _listed(self, values: Any, name: str, seen: bool = False) -> list[Tree]:
        """The parts of a sequence; of those that are too many, their number and a digest."""
        listed = [
            self._tree(part, f"{name}.{i}", seen)
            for part, i in zip(values, range(MOST_LISTED), strict=False)
        ]
        if len(values) > MOST_LISTED:
            rest = hashlib.blake2b(digest_size=16)
            for at in range(MOST_LISTED, len(values)):
                part = json.dumps(self._tree(values[at], f"{name}.{at}", seen))
                rest.update(part.encode() + b"\n")
            more = len(values) - MOST_LISTED
            listed.append({"more": more, "digest": rest.hexdigest()})
        return listed


def _plain(value: Any) -> Tree:
    """A number or a text, also of a class that is derived from theirs."""
    if isinstance(value, int):
        number = int(value)
        return number if number.bit_length() <= MOST_BYTES else _text("int", hex(number))
    if isinstance(value, (float, complex)):
        return _number(complex(value) if isinstance(value, complex) else float(value))
    if isinstance(value, str):
        text = str.__str__(value)
        return text if len(text) <= MOST_CHARACTERS else _text("str", text)
    shown = bytes(value)
    if len(shown) <= MOST_BYTES:
        return {"bytes": shown.hex()}
    digest = hashlib.blake2b(shown, digest_size=16).hexdigest()
    return {"bytes": shown[:MOST_BYTES].hex(), "length": len(shown), "digest": digest}


def _text(word: str, text: str) -> Tree:
    if len(text) <= MOST_CHARACTERS:
        return {word: text}
    return {word: text[:MOST_CHARACTERS], "length": len(text), "digest": digest_of_text(text)}


def _number(number: Any) -> Tree:
    """A number of Python's as JSON has it: repr is exact."""
    if isinstance(number, complex):
        return {"complex": [_number(number.real), _number(number.imag)]}
    if isinstance(number, float) and (number != number or number in (np.inf, -np.inf)):
        return {"float": str(number)}
    return number


def _is_numeric(dtype: Any) -> bool:
    """Whether elements of `dtype` are numbers of Python's, too, and not of long doubles."""
    size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return dtype.kind in "biufc" and size <= _WIDEST


def _scalar(value: Any) -> Tree:
    if _is_numeric(value.dtype):
        return {"scalar": {"dtype": value.dtype.name, "value": _number(value.item())}}
    return {"value": str(value)[:MOST_CHARACTERS], "type": kind_of(value)}


def _special(value: Any) -> Tree | None:
    """What JSON has no word for and is no container; None where it may be one."""
    if isinstance(value, _TORCH_WORDS):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, (slice, range)):
        bounds = (value.start, value.stop, value.step)
        return {type(value).__name__: [_bound(each) for each in bounds]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {"unrecorded": "a symbolic number", "type": kind_of(value)}
    if isinstance(value, _VALUES):
        return {"value": repr(value)[:MOST_CHARACTERS], "type": kind_of(value)}
    if isinstance(value, re.Pattern):
        return {"value": value.pattern, "type": kind_of(value)}
    if isinstance(value, _NAMED):
        module = getattr(value, "__module__", None) or ""
        name = getattr(value, "__qualname__", None) or value.__name__
        return {"name": f"{module}.{name}".lstrip(".")}
    return None


def _bound(value: Any) -> Tree:
    return value if value is None or type(value) is int else repr(value)[:MOST_CHARACTERS]


def _attributes(value: Any) -> dict[str, Any] | None:
    """What an object of a class of Python's has; None where memory of C holds more of it."""
    kind = type(value)
    if not all(each.__flags__ & _HEAP_TYPE for each in kind.__mro__[:-1]):
        return None
    slots = [name for each in kind.__mro__ for name in _slot_names(each)]
    has_room = hasattr(value, "__dict__") or slots
    if not has_room:
        return None
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _slot_names(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    listed = (names,) if isinstance(names, str) else tuple(names)
    return tuple(name for name in listed if name not in ("__dict__", "__weakref__"))


def _opaque(value: Any, asks: bool) -> Tree:
    """An object that has no value of its own, by its type and what it says of itself if asked."""
    if not asks:
        return {"opaque": kind_of(value)}
    try:
        said = without_addresses(repr(value))
    except Exception as error:  # the program's own code
        said = f"{type(error).__name__}"
    return {"opaque": kind_of(value), "digest": digest_of_text(said)}


def _as_tensor(array: Any) -> Tensor | None:
    """An array of numpy as a tensor, which may share its memory; None where torch has no such."""
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    is_plain = native.flags.writeable and all(stride >= 0 for stride in native.strides)
    try:
        return torch.from_numpy(native if is_plain else native.copy())
    except (TypeError, ValueError):
        return None
