"""Nested arguments and results flattened to slots, and written down so that a call can be rerun."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.trees import parts_of

Slots = list[tuple[str, Tensor]]  # ("input.0.mask", the tensor) in order

_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, slice, type(Ellipsis))


def slots_of(prefix: str, value: object) -> Slots:
    """The tensors in `value`: a lone one is ``prefix.0``, nested ones have dotted names."""
    if isinstance(value, Tensor):
        return [(prefix + ".0", value)]
    found: Slots = []
    _flatten(prefix, value, found)
    return found


def _flatten(name: str, value: object, found: Slots) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
    elif not isinstance(value, _PLAIN):
        for word, child in parts_of(value) or ():
            _flatten(f"{name}.{word}", child, found)


def arguments_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], positions: Mapping[str, int]
) -> tuple[Slots, str]:
    """The input slots of a call, and its argument tree as JSON with slots in place of tensors.

    A keyword that `positions` knows gets the slot of its position, so that ``f(x, w)`` and
    ``f(x, weight=w)`` have the same slots.
    """
    found: Slots = []
    listed = [_written(f"input.{i}", value, found) for i, value in enumerate(args)]
    if not kwargs:
        return found, f'{{"args":[{",".join(listed)}]}}'
    named = []
    for word, value in kwargs.items():
        name = f"input.{positions.get(word, word)}"
        named.append(f"{json.dumps(word)}:{_written(name, value, found)}")
    return found, f'{{"args":[{",".join(listed)}],"kwargs":{{{",".join(named)}}}}}'


def _written(name: str, value: object, found: Slots) -> str:
    """`value` as JSON; its tensors are appended to `found`."""
    if isinstance(value, Tensor):
        found.append((name, value))
        return f'{{"slot":"{name}"}}' if '"' not in name else json.dumps({"slot": name})
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float:
        return _written_float(value)  # type: ignore[arg-type]
    if kind is str:
        return json.dumps(value)
    if kind is list:
        return f"[{_listed(name, value, found)}]"  # type: ignore[arg-type]
    return _written_special(name, value, found)


def _listed(name: str, values: Iterable[object], found: Slots) -> str:
    return ",".join([_written(f"{name}.{i}", value, found) for i, value in enumerate(values)])


def _written_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'{{"float":"{value}"}}'


def _written_special(name: str, value: object, found: Slots) -> str:
    """What JSON has no word for, as an object with one key that says what it is."""
    if isinstance(value, tuple):
        word = "size" if isinstance(value, torch.Size) else "tuple"
        return f'{{"{word}":[{_listed(name, value, found)}]}}'
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return f'{{"{type(value).__name__}":"{str(value).removeprefix("torch.")}"}}'
    if isinstance(value, slice):
        bounds = _listed(name, (value.start, value.stop, value.step), found)
        return f'{{"slice":[{bounds}]}}'
    if value is Ellipsis:
        return '{"ellipsis":true}'
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        return _written_number(value)
    if isinstance(value, complex):
        return f'{{"complex":[{value.real!r},{value.imag!r}]}}'
    return _written_object(name, value, found)


def _written_number(value: Any) -> str:
    if isinstance(value, (int, torch.SymInt)):
        return str(int(value))
    return _written_float(float(value))


def _written_object(name: str, value: object, found: Slots) -> str:
    """A container by its parts; any other object by its type, since it cannot be made again."""
    children = list(parts_of(value) or ())
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not children and not isinstance(value, (Mapping, list)):
        return f'{{"object":{json.dumps(kind)}}}'
    parts = ",".join(
        f"{json.dumps(str(word))}:{_written(f'{name}.{word}', child, found)}"
        for word, child in children
    )
    if isinstance(value, dict) and kind == "builtins.dict":
        return f'{{"dict":{{{parts}}}}}'
    return f'{{"object":{json.dumps(kind)},"parts":{{{parts}}}}}'
