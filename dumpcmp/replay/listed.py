"""From the recorded name of a function to the function: of torch's own, and only listed ones."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from dumpcmp.nouns.op_names import OpSet, plain_name, plain_operator, writes_in_place
from dumpcmp.replay.kinds import KINDS, FunctionKind
from dumpcmp.replay.onnx_ops import named
from dumpcmp.replay.references import reference_of
from dumpcmp.replay.standins import stand_in
from dumpcmp.replay.unreplayable import NothingToCheck, Unreplayable

# Where a recorded name may begin -> what holds the functions.
_ROOMS: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch._VariableFunctionsClass": torch,
    "torch._C._VariableFunctions": torch,
    "torch.functional": torch.functional,
    "torch.nn.functional": torch.nn.functional,
    "torch._C._nn": torch._C._nn,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "operator": operator,
}
_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag"))
_WORD = re.compile(r"[A-Za-z_]\w*")
_BRACKETS = OpSet("getitem setitem")


@dataclass(frozen=True, slots=True)
class ReplayFunction:
    """A function that may be run again."""

    run: Callable[..., Any]
    name: str  # "add": one name however it is spelled
    kind: FunctionKind
    changes_first: bool = False  # works in place on its first argument
    returns_nothing: bool = False  # its result is that argument
    reads_sizes: bool = False  # what it gives out has sizes that it is given as numbers in tensors


def function_named(target: str, ran_on: str = "cpu") -> ReplayFunction:
    """The function that `target`, such as ``"torch.Tensor.mul"``, names; it `ran_on` a device.

    Refused is whatever is not in the table of kinds: an archive decides which of these run, and
    nothing else.
    """
    if "::" in target:
        return _onnx_function(target)
    room, _, word = target.rpartition(".")
    if room == "torch.nn.init":
        raise NothingToCheck("it gives a weight its first numbers")
    if word == "__get__" and room.removeprefix("torch.Tensor.") in _ATTRIBUTES:
        name = room.removeprefix("torch.Tensor.")
        return ReplayFunction(operator.attrgetter(name), name, FunctionKind.MOVES)
    if room in _ROOMS:
        return _torch_function(target, room, word, ran_on)
    return _dispatched(target, ran_on)


@cache
def _torch_function(target: str, room: str, word: str, ran_on: str) -> ReplayFunction:
    holder = _ROOMS[room]
    is_operator = room == "operator" or (word.startswith("__") and word.endswith("__"))
    spelled = word.strip("_") if is_operator else word
    name, kind = _known(target)
    if is_operator and name not in _BRACKETS:
        return ReplayFunction(
            _python_operator(spelled, target), name, kind, writes_in_place(target)
        )
    found = stand_in(name, ran_on) or getattr(holder, word, None)
    if not callable(found):
        raise Unreplayable(f"{target} is not in this torch")
    return ReplayFunction(found, name, kind, writes_in_place(target), name == "setitem")


def _python_operator(spelled: str, target: str) -> Callable[..., Any]:
    """The plain operator: of reflected ones the arguments were recorded in its order."""
    word = plain_operator(spelled)
    found = getattr(operator, f"__{'truediv' if word == 'div' else word}__", None)
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
    if namespace == "prims" and (own := stand_in(op, ran_on)) is not None:
        return ReplayFunction(own, op, KINDS[op])
    if namespace != "aten":
        raise Unreplayable(
            f"{namespace}::{op} is a custom op without a reference",
            hint=f'register what it computes: dumpcmp.reference("{namespace}::{op}")',
        )
    return _aten_function(target, op, overload, ran_on)


_ONNX = re.compile(r"([\w.-]+)::(\w+)\.(\d{1,9})")


def _onnx_function(target: str) -> ReplayFunction:
    """A node of an ONNX graph: ``onnx::Gemm.13`` is the op and the opset that it is of."""
    found = _ONNX.fullmatch(target)
    if found is None:
        raise Unreplayable(f"{target} is not a function that can be run again")
    domain, op, opset = found.groups()
    told = reference_of(domain, op)
    if told is not None:
        return ReplayFunction(told, f"{domain}.{op}", FunctionKind.COMPOSES, reads_sizes=True)
    known = named(domain, op)
    if known is None:
        raise Unreplayable(
            f"{domain}::{op} is not in the table of ONNX ops",
            hint=f'register what it computes: dumpcmp.reference("{domain}::{op}")',
        )
    run = partial(known.run, opset=int(opset)) if known.is_versioned else known.run
    name = known.like or f"{domain}.{op}"
    return ReplayFunction(run, name, known.kind, reads_sizes=True)


@cache
def _aten_function(target: str, op: str, overload: str, ran_on: str) -> ReplayFunction:
    name, kind = _known(target)
    packet = getattr(torch.ops.aten, op, None)
    found = getattr(packet, overload, None) if overload and "out" not in overload else packet
    found = stand_in(name, ran_on) or found
    if found is None:
        raise Unreplayable(f"{target} is not in this torch")
    return ReplayFunction(found, name, kind, writes_in_place(target))


def _known(target: str) -> tuple[str, FunctionKind]:
    name = plain_name(target)
    if name not in KINDS:
        raise Unreplayable(f"{target} is not on the list of functions that are run again")
    return name, KINDS[name]
