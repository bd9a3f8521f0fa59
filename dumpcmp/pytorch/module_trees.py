"""Modules and what they hold, each met once by its identity: a module need not have a hash."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import Tensor, nn

V = TypeVar("V")


def named_modules_of(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`root` and all modules in it, by path, in torch's order; runs no code of theirs."""
    seen: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        dot = "." if path else ""
        waiting += [(f"{path}{dot}{name}", child) for name, child in reversed(children)]


def modules_of(root: nn.Module) -> Iterator[nn.Module]:
    """`root` and all modules in it."""
    return (module for _, module in named_modules_of(root))


def named_parameters_of(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of `root`, each by the path at which it is met first."""
    seen: set[int] = set()
    for path, module in named_modules_of(root):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}".lstrip("."), parameter


def has_state(root: nn.Module) -> bool:
    """Whether `root` has parameters or buffers, which make it this module and no other."""
    held: Iterator[Tensor | None] = (
        tensor
        for module in modules_of(root)
        for table in (module._parameters, module._buffers)
        for tensor in table.values()
    )
    return any(tensor is not None for tensor in held)


class ByModule(Generic[V]):
    """What is known of modules while they live; the one that was set last stands last."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], V]] = {}

    def get(self, module: nn.Module) -> V | None:
        found = self._known.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def set(self, module: nn.Module, value: V) -> None:
        number, known = id(module), self._known
        known.pop(number, None)

        def forget(gone: weakref.ref[nn.Module]) -> None:
            if number in known and known[number][0] is gone:
                del known[number]

        known[number] = weakref.ref(module, forget), value

    def values(self) -> list[V]:
        return [value for _, value in list(self._known.values())]

    def items(self) -> list[tuple[nn.Module, V]]:
        found = [(ref(), value) for ref, value in list(self._known.values())]
        return [(module, value) for module, value in found if module is not None]
