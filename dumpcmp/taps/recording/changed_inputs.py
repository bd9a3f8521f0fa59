"""Records what a root module or a compiled function was given and changed in place."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dumpcmp.nouns.effects import TARGET, Effect
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.taps.recording.plain import plain_of, version_of
from dumpcmp.taps.recording.returned import records_effects
from dumpcmp.taps.recording.sources import digest_of
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.written_trees import Tree, TreeWriter, told_of, written

_CONSTANT = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_Written = int | str | None  # what changes with every write to a tensor; None: nobody knows
_SeenTensors = dict[str, tuple["weakref.ref[Tensor]", _Written]]  # tensors by their slots


class _Argument(NamedTuple):
    """One argument as it was before the step."""

    tree: str  # with slots in place of tensors
    tensors: _SeenTensors


GivenArguments = Mapping[str, _Argument]  # by the names of the arguments


def given_to(step: Step, root: Any, args: Any, kwargs: Mapping[str, Any]) -> GivenArguments:
    """What the root of `step` is about to be given, as far as it can be changed in place."""
    if not records_effects(step) or not step.tap.outputs:
        return {}
    with step.outlet.sparing(), DisableTorchFunction(), DisableTorchDispatch():
        return {
            name: _argument(name, value)
            for name, value in named_arguments(root, args, kwargs)
            if not isinstance(value, _CONSTANT)
        }
    return {}


def put_changed(
    step: Step, root: Any, args: Any, kwargs: Mapping[str, Any], before: GivenArguments
) -> None:
    """Record those arguments of the root of `step` that are no longer what they were `before`."""
    if not before:
        return
    with step.outlet.sparing(), DisableTorchFunction(), DisableTorchDispatch():
        parts: dict[str, Tree] = {}
        found: list[tuple[str, Tensor]] = []
        for name, value in named_arguments(root, args, kwargs):
            if name not in before or not _is_changed(name, value, before[name]):
                continue
            writer = _Marking(before[name].tensors)
            parts[name] = writer.tree(value, f"output.{name}")
            found += writer.found
        if parts:
            tree = {"object": "inputs", "parts": parts}
            call = step.call(Effect.INPUTS.op, 0, TARGET, written(tree), "")
            step.put_effect(call, found)


def named_arguments(root: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a call of `root`, a module or a function, by the names that it has for them.

    A function is given tensors that it closes over, too.
    """
    called = root.forward if isinstance(root, nn.Module) else root
    code = getattr(called, "__code__", None)
    names: tuple[str, ...] = ()
    if isinstance(code, CodeType):
        is_bound = called is not root or isinstance(called, MethodType)
        names = code.co_varnames[is_bound : code.co_argcount]
    for place, value in enumerate(args):
        yield names[place] if place < len(names) else str(place), value
    yield from kwargs.items()
    if isinstance(called, FunctionType) and called is root:
        for name, cell in zip(called.__code__.co_freevars, called.__closure__ or (), strict=True):
            value = _content(cell)
            if isinstance(value, Tensor) and name not in kwargs:
                yield name, value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty one
        return None


def _argument(name: str, value: Any) -> _Argument:
    if isinstance(value, Tensor):  # as most arguments are
        return _Argument("", {f"output.{name}": (weakref.ref(value), _version(value))})
    writer = TreeWriter(asks=False)
    tree = writer.tree(value, f"output.{name}")
    known = {slot: (weakref.ref(tensor), _version(tensor)) for slot, tensor in writer.found}
    return _Argument(json.dumps(tree), known)


def _is_changed(name: str, value: Any, before: _Argument) -> bool:
    if isinstance(value, Tensor):
        return not _is_still(before.tensors.get(f"output.{name}"), value)
    writer = TreeWriter(asks=False)
    if json.dumps(writer.tree(value, f"output.{name}")) != before.tree:
        return True
    return any(not _is_still(before.tensors.get(slot), tensor) for slot, tensor in writer.found)


def _is_still(known: tuple[weakref.ref[Tensor], _Written] | None, tensor: Tensor) -> bool:
    """Whether `tensor` is the one that was known, and was not written to since."""
    return known is not None and known[0]() is tensor and known[1] == _version(tensor)


def _version(tensor: Tensor) -> _Written:
    """How often a tensor was written to; of one that does not count, a digest where it is cheap."""
    plain = plain_of(tensor)
    if plain.problem:
        return None
    version = version_of(plain.tensor)
    if version is None and plain.tensor.is_cpu:
        return digest_of(plain.tensor)
    return version


class _Marking(TreeWriter):
    """Writes an argument after the step; tensors that are as they were are only told of."""

    def __init__(self, known: _SeenTensors) -> None:
        super().__init__(asks=False)
        self._known = known

    def _tensor(self, tensor: Tensor, name: str, seen_by_slots: bool) -> Tree:
        if _is_still(self._known.get(name), tensor):
            return {"unchanged": told_of(tensor)}
        return super()._tensor(tensor, name, seen_by_slots)
