"""The table of ONNX ops: what each is called, what it computes, and its kind of arithmetic.

A definition takes an op's inputs by position, None where one is left out, and its attributes by
name. It is plain torch, and gives what its inputs' dtypes give: float64 where they are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dumpcmp.nouns.onnx_dtypes import ONNX_DTYPES
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.unreplayable import Unreplayable

Definition = Callable[..., Any]
_D = TypeVar("_D", bound=Definition)


@dataclass(frozen=True, slots=True)
class OnnxOp:
    """One op of the table."""

    run: Definition
    kind: FunctionKind
    like: str = ""  # torch's function that takes the same arguments in the same order
    is_versioned: bool = False  # it is another in other opsets: it takes `opset`


_TABLE: dict[str, OnnxOp] = {}
MICROSOFT = "com.microsoft"


def define(
    names: str, kind: FunctionKind, *, like: str = "", domain: str = "onnx",
    versioned: bool = False, by_shapes: bool = False,
) -> Callable[[_D], _D]:  # fmt: skip
    """Put a definition into the table under each of `names`.

    `by_shapes`: the shapes of what it takes tell those of what it gives, whatever the numbers are.
    """

    def put(definition: _D) -> _D:
        run = _all_as_shapes(definition) if by_shapes else definition
        for name in names.split():
            _TABLE[f"{domain}::{name}"] = OnnxOp(run, kind, like, versioned)
        return definition

    return put


def _all_as_shapes(definition: Definition) -> Definition:
    """`definition`, which is given shapes alone where it would be given some."""

    def run(*given: Tensor | None, **told: Any) -> Any:
        if any(each is not None and each.is_meta for each in given):
            given = tuple(None if each is None else each.to("meta") for each in given)
        return definition(*given, **told)

    return run


def also(names: str, definition: Definition, kind: FunctionKind, like: str = "") -> None:
    """Put a function of torch that takes just the inputs into the table."""
    for name in names.split():
        _TABLE[f"onnx::{name}"] = OnnxOp(definition, kind, like)


def named(domain: str, op: str) -> OnnxOp | None:
    """The op of this name, if the table has it."""
    return _TABLE.get(f"{domain}::{op}")


def numbers(given: Tensor | Sequence[int] | None) -> list[int]:
    """Whole numbers that an op is given as a tensor, or as an attribute."""
    if given is None:
        return []
    if isinstance(given, Tensor):
        if given.is_meta:
            raise Unreplayable("how much it gives out is not told by shapes alone")
        return [int(each) for each in given.reshape(-1).tolist()]
    return [int(each) for each in given]


def number(given: Tensor | float | None, default: float = 0.0) -> float:
    """A number that an op is given as a tensor of one element."""
    if given is None:
        return default
    if isinstance(given, Tensor):
        if given.is_meta:
            return default
        return float(given.reshape(-1)[0])
    return float(given)


def dtype_numbered(number: int) -> torch.dtype:
    """Torch's dtype of a number of ONNX."""
    if number not in ONNX_DTYPES:
        raise Unreplayable(f"torch has no dtype for ONNX's number {number}")
    found: torch.dtype = getattr(torch, ONNX_DTYPES[number])
    return found


def wide_for(dtype: torch.dtype, *given: Tensor | None) -> torch.dtype:
    """`dtype`, or float64 where it is one of floats and what is given is in float64."""
    is_wide = any(each is not None and each.dtype == torch.float64 for each in given)
    return torch.float64 if dtype.is_floating_point and is_wide else dtype
