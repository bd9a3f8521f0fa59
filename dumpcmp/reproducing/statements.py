"""A recorded call as a line of plain code: the function by its public name, and its arguments."""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import plain_operator
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable

_PUBLIC = {
    "torch._VariableFunctionsClass": "torch",
    "torch._C._VariableFunctions": "torch",
    "torch.functional": "torch",
}
_GETTER = "torch.Tensor."  # torch.Tensor.T.__get__


class Variable(str):
    """The name of a value in the code, where a tensor stands among arguments."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """One call of a function, and the variables that stand for what it takes and gives, by slot."""

    call: Call
    takes: Mapping[str, str]
    gives: Mapping[str, str]

    def __post_init__(self) -> None:
        function_named(self.call.target)  # one that may not be run again is refused
        if "::" in self.call.target:
            raise Unreplayable("a node of an ONNX graph is no function that a script could call")

    @property
    def arguments(self) -> CallArguments:
        """What it is called with, a Variable in place of each tensor."""
        names = cast("Any", {slot: Variable(name) for slot, name in self.takes.items()})
        return read_arguments(self.call.arguments, names)

    def with_number(self, old: int, new: int) -> Statement:
        """The same with another number wherever `old` stands among the arguments."""
        tree = _with_number(json.loads(self.call.arguments), old, new)
        return replace(self, call=replace(self.call, arguments=json.dumps(tree)))

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What it gives in float64, by variable."""
        given = {slot: values[name] for slot, name in self.takes.items()}
        outputs = rerun(self.call, given, is_rated=False).outputs
        return {name: outputs[slot] for slot, name in self.gives.items() if slot in outputs}

    def lines(self) -> list[str]:
        """The code: the call, and a line for each of its results that has a name of its own."""
        function = function_named(self.call.target)
        args = [spelled(part) for part in self.arguments.args]
        named = self.arguments.kwargs.items()
        words = [f"{code_word(word)}={spelled(part)}" for word, part in named]
        if function.changes_first and args:
            args[0] += ".clone()"
        slots = list(self.gives)
        name = next(iter(self.gives.values()), "_")
        room, _, word = self.call.target.rpartition(".")
        if word == "__get__":
            return [f"{name} = {args[0]}.{room.removeprefix(_GETTER)}"]
        called = f"{_public(self.call.target)}({', '.join([*args, *words])})"
        if function.returns_nothing:
            return [f"{name} = {args[0]}", called.replace(args[0], name, 1)]
        if slots in (["output.0"], []):
            return [f"{name} = {called}"]
        first = f"{name}_all"
        return [f"{first} = {called}", *(f"{v} = {first}{_path(s)}" for s, v in self.gives.items())]


def _with_number(tree: Any, old: int, new: int) -> Any:
    if isinstance(tree, dict):
        return {word: _with_number(part, old, new) for word, part in tree.items()}
    if isinstance(tree, list):
        return [_with_number(part, old, new) for part in tree]
    return new if type(tree) is int and tree == old else tree


def code_word(text: str) -> str:
    """`text`, which has to be a plain name: an archive may call its values whatever it likes."""
    if not text.isascii() or not text.isidentifier() or keyword.iskeyword(text):
        raise Unreplayable(f"{text[:80]!r} is no name that may stand in a script")
    return text


def _path(slot: str) -> str:
    words = slot.removeprefix("output.").split(".")
    return "".join(f"[{int(w)}]" if w.isdecimal() else f".{code_word(w)}" for w in words)


def _public(target: str) -> str:
    """The name by which the function can be called."""
    room, _, word = target.rpartition(".")
    room = _PUBLIC.get(room, room)
    is_dunder = word.startswith("__") and word.endswith("__")
    if (is_dunder or room == "operator") and word.strip("_") not in ("getitem", "setitem"):
        plain = plain_operator(word.strip("_"))
        return f"operator.{'truediv' if plain == 'div' else plain}"
    if is_dunder:
        return f"operator.{word.strip('_')}"
    if room.startswith("aten"):
        return f"torch.ops.{target}"
    return f"{room}.{word}"


def spelled(value: Any) -> str:
    """`value` as code."""
    match value:
        case Variable():
            return str(value)
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case torch.device():
            return "DEVICE"
        case list():
            return f"[{', '.join(map(spelled, value))}]"
        case tuple():
            return f"({''.join(f'{spelled(part)}, ' for part in value).rstrip()})"
        case dict():
            return f"{{{', '.join(f'{w!r}: {spelled(part)}' for w, part in value.items())}}}"
        case slice():
            return f"slice({spelled(value.start)}, {spelled(value.stop)}, {spelled(value.step)})"
        case _ if value is Ellipsis:
            return "..."
    return repr(value) if not isinstance(value, torch.Size) else str(tuple(value))
