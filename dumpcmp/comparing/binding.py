"""Gives the arguments of a call their names, so that spellings of one call become the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dumpcmp.nouns.given import CallInputs, DtypeWord, Stand, is_number, is_whole
from dumpcmp.nouns.op_names import plain_name
from dumpcmp.pytorch.signatures import MISSING, Overload, Parameter, signatures_of

Bound = Mapping[str, Any]

# What decides where a result lies, who is told of it, or how it is computed, and not what it is.
_IDLE = frozenset(
    """
    self out device layout memory_format non_blocking copy pin_memory requires_grad generator
    inplace cudnn_enable cudnn_enabled _stacklevel sparse scale_grad_by_freq allow_tf32 benchmark
    deterministic size_average reduce implicit sorted return_indices half_to_float
    """.split()  # noqa: SIM905
)


def bindings_of(given: CallInputs, function: str, target: str) -> list[dict[str, Any]]:
    """The arguments by name, as each overload that takes them names them; defaults filled in."""
    found = (bound(given, signature) for signature in signatures_of(function, target))
    return [_told(each) for each in found if each is not None]


def defaults_of(function: str, target: str) -> dict[str, Any]:
    """What the arguments of `function` are where nobody gives them, in any of its overloads."""
    parameters = [p for signature in signatures_of(function, target) for p in signature]
    implied = {"start": 0} if plain_name(function) == "arange" else {}
    return {p.name: p.default for p in reversed(parameters) if p.default is not MISSING} | implied


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if name not in _IDLE and value is not Stand.PLACE
    }


def unnamed(given: CallInputs, function: str) -> dict[str, Any]:
    """The arguments by position, where nothing says what they are called."""
    first = "equation" if plain_name(function) == "einsum" else "argument 0"
    named = {f"argument {i}" if i else first: value for i, value in enumerate(given.args)}
    return _told(named | dict(given.kwargs))


def bound(given: CallInputs, signature: Overload) -> dict[str, Any] | None:
    """The arguments by the names of `signature`; None where it does not take them."""
    positional = [p for p in signature if not p.by_name_only]
    args = _gathered(given.args, positional)
    if len(args) > len(positional):
        return None
    found = {p.name: value for p, value in zip(positional, args, strict=False)}
    known = {p.name: p for p in signature}
    for word, value in given.kwargs.items():
        name = _SPELLED.get(word, word)
        if name in found or name not in known:
            if word in _IDLE:
                continue
            return None
        found[name] = value
    return _complete(found, signature)


_SPELLED = {"input": "self", "x": "self", "axis": "dim", "keepdims": "keepdim", "train": "training"}


def _complete(found: Bound, signature: Overload) -> dict[str, Any] | None:
    """`found` with the defaults of what was not given, in their order; None where it does not fit.

    A list of one may be given as itself.
    """
    filled = {}
    for p in signature:
        value = found.get(p.name, p.default)
        if value is MISSING or (p.name in found and not _fits(value, p)):
            return None
        filled[p.name] = (value,) if p.kind == "int[]" and is_whole(value) else value
    return filled


def _gathered(args: Sequence[Any], positional: Sequence[Parameter]) -> Sequence[Any]:
    """``view(2, 3)`` as ``view((2, 3))``: integers that a list at the end stands for."""
    last = len(positional) - 1
    many = last >= 0 and positional[last].kind == "int[]" and len(args) > last
    if many and all(is_whole(value) or value is Stand.UNKNOWN for value in args[last:]):
        return [*args[:last], tuple(args[last:])]
    return args


def _fits(value: Any, parameter: Parameter) -> bool:
    if value is None:
        return parameter.default is None or parameter.kind in ("", "Tensor", "int[]", "dtype")
    if value is Stand.UNKNOWN or not parameter.kind:
        return True
    return _FITS[parameter.kind](value)


_FITS = {
    "Tensor": lambda value: value is Stand.TENSOR or is_number(value) or isinstance(value, bool),
    "Tensor[]": lambda value: isinstance(value, tuple) or value is Stand.TENSOR,
    "int": lambda value: is_whole(value) or value is Stand.TENSOR,
    "int[]": lambda value: is_whole(value) or (isinstance(value, tuple) and _are_whole(value)),
    "number": lambda value: is_number(value) or isinstance(value, bool) or value is Stand.TENSOR,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "dtype": lambda value: isinstance(value, DtypeWord),
}


def _are_whole(values: tuple[Any, ...]) -> bool:
    return all(is_whole(value) or isinstance(value, Stand) for value in values)
