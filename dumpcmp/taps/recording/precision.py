"""Runs a program in another precision than it asks for: the reference to which others are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.value import DTYPES, Kind

_CASTS = frozenset((torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16))


class Precision:
    """Converts models, the inputs of their root calls, and the casts inside them to `dtype`."""

    def __init__(self, name: str) -> None:
        known = DTYPES.get(name)
        if known is None or known.kind is not Kind.FLOAT or known.nbytes == 1:
            floats = ", ".join(d.name for d in DTYPES.values() if d.eps and d.nbytes > 1 and d.kind
                               is Kind.FLOAT)  # fmt: skip
            raise SelectionError(f"--dtype {name!r} is not known", hint=f"valid are: {floats}")
        self.dtype: torch.dtype = getattr(torch, name)
        self._before: list[tuple[Tensor, Tensor]] = []

    def convert(self, root: nn.Module) -> None:
        """Convert the parameters and buffers of `root`, in place, once."""
        for tensor in (*root.parameters(), *root.buffers()):
            if tensor.is_floating_point() and tensor.dtype != self.dtype:
                self._before.append((tensor, tensor.data))
                tensor.data = tensor.data.to(self.dtype)

    def restore(self) -> None:
        while self._before:
            tensor, own = self._before.pop()
            tensor.data = own

    def inputs(self, value: Any) -> Any:
        """`value`, such as the arguments of a root call, with floating tensors converted."""
        from torch.utils._pytree import tree_map_only

        return tree_map_only(Tensor, self._cast, value)

    def call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """A call inside the model, whose casts to other floating dtypes become casts to ours."""
        if func in _CASTS:
            return torch.Tensor.to, (args[0], self.dtype), {}
        args = tuple(self._dtype(value) for value in args)
        return func, args, {name: self._dtype(value) for name, value in kwargs.items()}

    def _dtype(self, value: Any) -> Any:
        floating = isinstance(value, torch.dtype) and value.is_floating_point
        return self.dtype if floating else value

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor
