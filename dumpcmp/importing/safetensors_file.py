"""Reads .safetensors by ranges: a length, a JSON header with the places of all values, bytes."""

from __future__ import annotations

import json
import math
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.schema import checked_sizes
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.importing.foreign import (
    FileBytes,
    Foreign,
    ForeignFile,
    Listed,
    RangeSource,
    in_natural_order,
)
from dumpcmp.nouns.budgets import SAFETENSORS, Spending
from dumpcmp.nouns.value import DTYPES

_LENGTH = 8  # bytes that say how long the header is
_WORDS = "__metadata__"
# What the format calls a dtype, and what torch does.
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64", "BOOL": "bool",
    **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip


class SafetensorsFile(ForeignFile):
    """A file of named tensors, each of which lies in one piece."""

    @cached_property
    def _octets(self) -> FileBytes:
        return FileBytes(self.path)

    @cached_property
    def _header(self) -> tuple[int, dict[str, Any]]:
        """Where the values begin, and what is said of them."""
        if self._octets.nbytes < _LENGTH:
            raise self.wrong(f"{self._octets.nbytes} bytes are too few for a .safetensors")
        nbytes = int.from_bytes(self._octets.at(0, _LENGTH), "little")
        if nbytes > self._octets.nbytes - _LENGTH:
            raise self.wrong(
                f"its header should have more bytes than the file has, {self._octets.nbytes}",
                "it is no .safetensors, or was cut short: write it again",
            )
        spending = Spending(SAFETENSORS, self.path, nbytes)
        try:
            told = json.loads(self._octets.at(_LENGTH, nbytes), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"its header is no JSON: {error}") from None
        if not isinstance(told, dict):
            raise self.wrong("its header is no JSON object")
        spending.name(len(told))
        return _LENGTH + nbytes, told

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        return {name: place for name, (_, place) in self._entries.items()}

    @cached_property
    def _entries(self) -> dict[str, tuple[Foreign, tuple[int, int]]]:
        """The values in the order in which they lie, and where each begins and ends."""
        start, told = self._header
        found = {n: self._entry(n, entry) for n, entry in told.items() if n != _WORDS}
        ordered = dict(sorted(found.items(), key=lambda item: item[1][1]))
        at = 0
        for name, (_, (first, last)) in ordered.items():
            if first < at:
                raise self.wrong(f"the bytes of {name!r} are those of another value, too")
            if first > at:
                raise self.wrong(f"{first - at} bytes before {name!r} are of no value")
            at = last
        if start + at != self._octets.nbytes:
            raise self.wrong(
                f"its values end at byte {start + at}, the file at {self._octets.nbytes}",
                "it was cut short, or more was written to it: write it again",
            )
        return ordered

    def _entry(self, name: str, told: Any) -> tuple[Foreign, tuple[int, int]]:
        try:
            called, shape = told["dtype"], checked_sizes(told["shape"])
            first, last = checked_sizes(told["data_offsets"])
            dtype = _NAMES.get(called, str(called))
        except (TypeError, KeyError, ValueError) as error:
            raise self.wrong(f"what it says of {name!r} makes no sense: {error!r}") from None
        value = Foreign(self.path, name, dtype, shape)
        if dtype not in DTYPES:
            problem = f"elements of type {dtype} cannot be stored"
            return Foreign(self.path, name, dtype, shape, problem), (first, last)
        if last - first != value.nbytes:
            raise self.wrong(
                f"{name!r} has {last - first} bytes, and {dtype} of shape {list(shape)} takes "
                f"{math.prod(shape) * DTYPES[dtype].nbytes}"
            )
        return value, (first, last)

    def listed(self) -> Listed:
        words = self._header[1].get(_WORDS)
        told = words if isinstance(words, dict) else {}
        names = sorted(self._entries, key=in_natural_order)  # its writers sort them otherwise
        values = tuple(self._entries[name][0] for name in names)
        return Listed(values, {str(name): str(word) for name, word in told.items()})

    def bits(self, value: Foreign) -> NDArray[np.generic]:
        if isinstance(self.path, RemotePath) or not value.nbytes:
            return super().bits(value)
        start = self._header[0] + self._places[value.name][0]
        storage = DTYPES[value.dtype].storage
        mapped = np.memmap(
            self.path, storage, "c", start, value.shape
        )  # a private copy, if written
        return mapped.view(np.ndarray)

    def source(self, value: Foreign) -> RangeSource:
        first, last = self._places[value.name]
        return RangeSource(self._octets, self._header[0] + first, last - first)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no name stands twice: one of two values would be lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        _twice([name for name, _ in pairs])
    return found


def _twice(names: list[str]) -> NoReturn:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name!r} stands in it twice")
        seen.add(name)
    raise AssertionError("no name stands in it twice")
