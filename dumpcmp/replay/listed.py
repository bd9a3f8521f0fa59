"""From the recorded name of a function to the function: of torch's own, and only listed ones."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dumpcmp.replay.kinds import KINDS, FunctionKind
from dumpcmp.replay.references import reference_of
from dumpcmp.replay.standins import STAND_INS
from dumpcmp.replay.unreplayable import NothingToCheck, Unreplayable

# Where a recorded name may begin -> what holds the functions, what stands before their plain names.
_ROOMS: dict[str, tuple[Any, str]] = {
    "torch": (torch, ""),
    "torch.Tensor": (torch.Tensor, ""),
    "torch._VariableFunctionsClass": (torch, ""),
    "torch._C._VariableFunctions": (torch, ""),
    "torch.functional": (torch.functional, ""),
    "torch.nn.functional": (torch.nn.functional, ""),
    "torch._C._nn": (torch._C._nn, ""),
    "torch.special": (torch.special, "special_"),
    "torch.linalg": (torch.linalg, "linalg_"),
    "torch.fft": (torch.fft, "fft_"),
    "operator": (operator, ""),
}
_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag"))
_WORD = re.compile(r"[A-Za-z_]\w*")
_TWO_SIDED = (
    "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
)  # fmt: skip
_INPLACE = frozenset(f"i{name}" for name in _TWO_SIDED)
_REFLECTED = frozenset(f"r{name}" for name in _TWO_SIDED)
_OPERATORS = {"div": "truediv"}
_SPELLINGS = {
    "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "inv": "invert",
    "concat": "cat", "concatenate": "cat", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "absolute": "abs", "_get_data_attr": "data", "trapz": "trapezoid", "ger": "outer",
    "row_stack": "vstack", "pos": "positive", "spmm": "mm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayFunction:
    """A function that may be run again."""

    run: Callable[..., Any]
    name: str  # "add": one name however it is spelled
    kind: FunctionKind
    changes_first: bool = False  # works in place on its first argument
    returns_nothing: bool = False  # its result is that argument


def function_named(target: str, ran_on: str = "cpu") -> ReplayFunction:
    """The function that `target`, such as ``"torch.Tensor.mul"``, names; it `ran_on` a device.

    Refused is whatever is not in the table of kinds: an archive decides which of these run, and
    nothing else.
    """
    room, _, word = target.rpartition(".")
    if room == "torch.nn.init":
        raise NothingToCheck("it gives a weight its first numbers")
    if word == "__get__" and room.removeprefix("torch.Tensor.") in _ATTRIBUTES:
        name = room.removeprefix("torch.Tensor.")
        return ReplayFunction(operator.attrgetter(name), name, FunctionKind.MOVES)
    return _torch_function(target, room, word) if room in _ROOMS else _dispatched(target, ran_on)


@cache
def _torch_function(target: str, room: str, word: str) -> ReplayFunction:
    holder, prefix = _ROOMS[room]
    is_operator = room == "operator" or (word.startswith("__") and word.endswith("__"))
    spelled = word.strip("_") if is_operator else word
    plain = prefix + spelled if prefix else _plain(spelled, is_operator)
    name, kind = _known(plain, target)
    changes = spelled in (*_INPLACE, "setitem") if is_operator else _is_inplace(word)
    if is_operator and spelled not in ("getitem", "setitem"):
        return ReplayFunction(_python_operator(spelled, target), name, kind)
    found = STAND_INS.get(name) or getattr(holder, word, None)
    if not callable(found):
        raise Unreplayable(f"{target} is not in this torch")
    return ReplayFunction(found, name, kind, changes, spelled == "setitem")


def _is_inplace(word: str) -> bool:
    return word.endswith("_") and not word.endswith("__")


def _python_operator(spelled: str, target: str) -> Callable[..., Any]:
    """The plain operator: of reflected ones the arguments were recorded in its order."""
    word = spelled[1:] if spelled in _INPLACE | _REFLECTED else spelled
    found = getattr(operator, f"__{_OPERATORS.get(word, word)}__", None)
    if found is None:
        raise Unreplayable(f"{target} is no operator")
    return found  # type: ignore[no-any-return]


def _dispatched(target: str, ran_on: str) -> ReplayFunction:
    """An op of the dispatcher: ``aten.mm.default``, or one of the user's with a reference."""
    words = target.removeprefix("torch.ops.").split(".")
    if len(words) not in (2, 3) or not all(_WORD.fullmatch(word) for word in words):
        raise Unreplayable(f"{target} is not a function that can be run again")
    namespace, op, overload = (*words, "")[:3]
    told = reference_of(namespace, op, overload, ran_on)
    if told is not None:
        return ReplayFunction(told, op, KINDS.get(op, FunctionKind.COMPOSES))
    if namespace != "aten":
        raise Unreplayable(
            f"{namespace}::{op} is a custom op without a reference",
            hint=f'register what it computes: dumpcmp.reference("{namespace}::{op}")',
        )
    return _aten_function(target, op, overload)


@cache
def _aten_function(target: str, op: str, overload: str) -> ReplayFunction:
    is_operator = op.startswith("__") and op.endswith("__")
    name, kind = _known(_plain(op.strip("_") if is_operator else op, is_operator), target)
    packet = getattr(torch.ops.aten, op, None)
    found = getattr(packet, overload, None) if overload and "out" not in overload else packet
    found = STAND_INS.get(name, found)
    if found is None:
        raise Unreplayable(f"{target} is not in this torch")
    return ReplayFunction(found, name, kind, _is_inplace(op))


def _known(name: str, target: str) -> tuple[str, FunctionKind]:
    if name not in KINDS:
        raise Unreplayable(f"{target} is not on the list of functions that are run again")
    return name, KINDS[name]


def _plain(spelled: str, is_operator: bool) -> str:
    """`spelled` without what only says how it was reached: underscores, reflection, in place."""
    name = spelled[1:] if is_operator and spelled in _INPLACE | _REFLECTED else spelled
    name = name if name in KINDS else name.rstrip("_")
    return _SPELLINGS.get(name, name)
