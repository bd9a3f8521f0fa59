"""How torch's functions name their arguments, and what they are where nobody gives them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

MISSING = object()  # of a parameter that must be given


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function: its kind is empty where Python does not say."""

    name: str
    kind: str = ""  # "Tensor", "int", "int[]", "number", "bool", "str"
    default: Any = MISSING
    by_name_only: bool = False


Overload = tuple[Parameter, ...]


@cache
def signatures_of(function: str, target: str) -> tuple[Overload, ...]:
    """What `function`, which `target` names in full, may be called with: one for each overload."""
    if target.startswith("aten."):  # "aten._softmax.default", whatever else has the name
        return tuple(_of_aten(target.split(".")[1]))
    return (*_of_python(function, target), *_of_aten(function))


def _of_python(function: str, target: str) -> Iterator[Overload]:
    found = getattr(F, function, None) if target.startswith("torch.nn.functional.") else None
    if not inspect.isfunction(found):
        return
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # a Python wrapper of a built-in, which has none
        return
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return
    yield tuple(
        Parameter(
            _plain(p.name),
            default=MISSING if p.default is p.empty else p.default,
            by_name_only=p.kind is p.KEYWORD_ONLY,
        )
        for p in parameters
    )


def _of_aten(function: str) -> Iterator[Overload]:
    packet = getattr(torch.ops.aten, function, None) if function.isidentifier() else None
    for name in packet.overloads() if packet is not None else ():
        schema = getattr(packet, name)._schema
        outputs = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        returns_tensor = any("Tensor" in str(r.type) for r in schema.returns)
        if returns_tensor and not any(a.kwarg_only for a in outputs):
            yield tuple(map(_of_argument, schema.arguments))


def _of_argument(argument: Any) -> Parameter:
    default = argument.default_value if argument.has_default_value() else MISSING
    if isinstance(default, list):
        default = tuple(default)
    return Parameter(_plain(argument.name), _kind(argument), default, argument.kwarg_only)


def _kind(argument: Any) -> str:
    if argument.name == "dtype":  # which schemas call an int
        return "dtype"
    return _KINDS.get(str(argument.type).replace("Optional[", "").rstrip("]"), "")


_KINDS = {
    "Tensor": "Tensor", "List[Tensor": "Tensor[]", "int": "int", "SymInt": "int",
    "List[int": "int[]", "List[SymInt": "int[]", "float": "number", "number": "number",
    "Scalar": "number", "bool": "bool", "str": "str",
}  # fmt: skip


def _plain(name: str) -> str:
    """One name for what Python and aten name in two ways."""
    return _NAMES.get(name, name)


_NAMES = {"input": "self", "x": "self", "axis": "dim", "keepdims": "keepdim", "train": "training"}
