"""Reads .pt: tensors, and dicts and lists of them, by torch.load that allows nothing else."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.copies import copied_here
from dumpcmp.importing.foreign import (
    ArraySource,
    Foreign,
    ForeignFile,
    Listed,
)
from dumpcmp.nouns.budgets import MOST_AGAIN, TORCH, Spending
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.value import DTYPES, value_of

if TYPE_CHECKING:
    import torch

DEEPEST = TORCH.depth  # dicts in dicts
_QUOTED = re.compile(r"""b?'[^']*'|b?"[^"]*\"""")
_MOST_WORDS = 10_000
_LONGEST = 1000  # characters of a word that are kept
_HINT = (
    "only plain tensors, and dicts and lists of them, are loaded: unpickling anything else would "
    "run what the file says. Save tensors alone: torch.save({name: tensor.detach().cpu()}, file)"
)


class TorchFile(ForeignFile):
    """A file that torch.save has written; its tensors are mapped, not read."""

    def __enter__(self) -> TorchFile:
        self._open = ExitStack()
        self._path = self._open.enter_context(copied_here(self.path))
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()

    @cached_property
    def _leaves(self) -> dict[str, Any]:
        """All that is in the file, by the names of the dicts and lists around it."""
        found: dict[str, Any] = {}
        for name, leaf in self._walked(self._loaded()):
            if found.setdefault(name, leaf) is not leaf:
                raise self.wrong(f"two of its values are called {name!r}")
        return found

    def tree(self) -> Any:
        """What is in the file, as it was saved: dicts and lists of tensors, numbers and texts."""
        return self._loaded()

    def _walked(self, tree: Any) -> Iterator[tuple[str, Any]]:
        """The leaves of dicts and lists, by the path to each.

        A pickle of a few bytes can hold lists that hold each other twice, 2 ** 64 paths in all.
        """
        spending = Spending(TORCH, self.path, self._path.stat().st_size)
        seen: set[int] = set()  # dicts and lists; they live as long as `tree`
        num_again = 0
        waiting: list[tuple[tuple[str, ...], Any, bool]] = [((), tree, False)]
        while waiting:
            path, node, is_again = waiting.pop()
            is_deep = len(path) > DEEPEST
            branches = None if is_deep else _branches(node)
            if branches is None:
                yield ".".join(path), f"what is deeper than {DEEPEST} dicts" if is_deep else node
                continue
            is_again = is_again or id(node) in seen
            seen.add(id(node))
            spending.node(count=len(branches))
            num_again += len(branches) * is_again
            if num_again > MOST_AGAIN:
                raise self.wrong(
                    f"its dicts and lists stand in each other so often that more than {MOST_AGAIN} "
                    "values are reached more than once",
                    "save each tensor once: torch.save({name: tensor}, file)",
                )
            waiting += [((*path, name), each, is_again) for name, each in reversed(branches)]

    def _loaded(self) -> Any:
        import torch

        options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
        with self._path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
        if is_zip:
            self._check_zip()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(self._path, mmap=is_zip, **options)
        except pickle.UnpicklingError as error:
            raise self.wrong(_said(error), _HINT) from None
        except Exception as error:  # what a damaged file makes of the unpickler has many names
            raise self.wrong(f"torch cannot load it: {_first_line(error)}") from None

    def _check_zip(self) -> None:
        """Refuse a zip that unpacks to more than it has: torch.save does not compress."""
        try:
            with zipfile.ZipFile(self._path) as file:
                entries = file.infolist()
        except Exception as error:  # of zipfile, and of what reads names and numbers in it
            raise self.wrong(f"torch cannot load it: {_first_line(error)}") from None
        Spending(TORCH, self.path, 0).name(len(entries))
        total, nbytes = sum(entry.file_size for entry in entries), self._path.stat().st_size
        if total > nbytes:
            raise self.wrong(
                f"its entries take {total} bytes unpacked, and the file has {nbytes}",
                "torch.save does not compress: save it again",
            )

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        import torch

        return {
            name: leaf if isinstance(leaf, torch.Tensor) else _scalar(leaf)
            for name, leaf in self._leaves.items()
            if isinstance(leaf, torch.Tensor) or _is_number(leaf)
        }

    def listed(self) -> Listed:
        values = (self._value(name, tensor) for name, tensor in self._tensors.items())
        words = ((name, leaf) for name, leaf in self._leaves.items() if name not in self._tensors)
        told = {name: str(leaf)[:_LONGEST] for name, leaf in islice(words, _MOST_WORDS)}
        told |= {name: str(leaf) for name, leaf in self._leaves.items() if isinstance(leaf, int)}
        return Listed(tuple(values), told)

    def _value(self, name: str, tensor: torch.Tensor) -> Foreign:
        dtype = str(tensor.dtype).removeprefix("torch.")
        try:
            shape = tuple(map(int, tensor.shape))
        except RuntimeError:  # a nested tensor has none
            return Foreign(self.path, name, dtype, (), "a nested tensor has no one shape")
        return Foreign(self.path, name, dtype, shape, _trouble(tensor, dtype))

    def source(self, value: Foreign) -> ArraySource:
        return ArraySource(self.bits(value))

    def bits(self, value: Foreign) -> NDArray[np.generic]:
        try:
            return value_of(self._tensors[value.name]).bits
        except (RuntimeError, TypeError, DumpcmpError) as error:
            said = str(error).partition("\n")[0]
            raise self.wrong(f"{value.name or 'its tensor'} cannot be read: {said}") from None


def _trouble(tensor: torch.Tensor, dtype: str) -> str:
    if tensor.is_sparse or str(tensor.layout) != "torch.strided":
        return f"{str(tensor.layout).removeprefix('torch.')} tensors have no dense bytes"
    if tensor.is_meta:
        return "a tensor on the meta device has no elements"
    return "" if dtype in DTYPES else f"elements of type {dtype} cannot be stored"


def _scalar(number: bool | int | float) -> torch.Tensor:
    import torch

    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _is_number(leaf: Any) -> bool:
    """Whether it is a number that a tensor holds as it is."""
    return isinstance(leaf, bool | float) or (isinstance(leaf, int) and -(2**63) <= leaf < 2**63)


def _branches(node: Any) -> list[tuple[str, Any]] | None:
    """What a dict or a list holds, by name; None of anything else."""
    if isinstance(node, Mapping):
        return [(str(name), branch) for name, branch in node.items()]
    if isinstance(node, list | tuple):
        return [(str(number), branch) for number, branch in enumerate(node)]
    return None


def _first_line(error: Exception) -> str:
    """What an error says, without the bytes of the file that Python's unpickler quotes."""
    said = _QUOTED.sub("...", str(error).partition("\n")[0])
    return said or type(error).__name__


def _said(error: pickle.UnpicklingError) -> str:
    """What torch says of a file that holds more than tensors: which class or function it names."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = next((line for line in lines if "GLOBAL" in line or "nsupported" in line), "")
    if not told:
        return f"torch cannot load it: {_first_line(error)}"
    return "it holds more than tensors: " + told.partition("Please")[0].strip()
