"""Puts other values in place of what calls give, while the program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.pytorch.trees import slots_of

GRAFTED = "dumpcmp.graft"  # stands for the function of a call whose result was replaced
GraftedCall = tuple[int, str, int]  # step, op, call
ValueInPlace = Callable[[Tensor], Tensor]  # from what the call itself gave


class _PassedBack(torch.autograd.Function):
    """Another value, whose gradient goes to the value in the place of which it is."""

    @staticmethod
    def forward(_ctx: Any, own: Tensor, other: Tensor) -> Tensor:  # noqa: ARG004
        return other.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


@dataclass(eq=False)
class Grafts:
    """Which results are replaced, and by what."""

    values: Mapping[
        GraftedCall, Mapping[str, ValueInPlace | None]
    ]  # by slot; None: its own in float64
    rows: Sequence[int] | None = None  # of the first dim; None: all
    whole: Set[GraftedCall] = frozenset()  # those that give nothing else
    hidden: Mapping[int, Set[str]] = field(default_factory=dict)  # by step: modules in whose place
    # an op's result stands, so that nothing else in them counts
    done: dict[GraftedCall, str] = field(default_factory=dict)  # what was replaced, and how far off

    @property
    def missing(self) -> list[str]:
        """The calls that have not run."""
        left = [place for place in self.values if place not in self.done]
        return [f"{op}#{call}, token {step}" for step, op, call in left]

    def has(self, step: int, op: str, number: int) -> bool:
        """Whether the results of this call are replaced."""
        return (step, op, number) in self.values

    def slots_of(self, path: str, function: str) -> set[str]:
        """The results of such a call that are replaced in any step."""
        return {
            slot
            for (_, op, _), slots in self.values.items()
            for slot in slots
            if op.rpartition("/")[2] == function and _ends_with(op.rpartition("/")[0], path)
        }

    @property
    def in_float64(self) -> bool:
        """Whether some op's own result in float64 is put in place."""
        return any(None in slots.values() for slots in self.values.values())

    def hides(self, step: int, op: str, number: int) -> bool:
        """Whether the call is in a module in place of whose result another stands."""
        if self.rows is not None or self.has(step, op, number):
            return False
        return any(op.startswith((f"{m}/", f"{m}.")) for m in self.hidden.get(step, ()))

    def is_whole(self, step: int, op: str, number: int) -> bool:
        """Whether all that this call gives is replaced, so that nothing in it counts."""
        return self.rows is None and (step, op, number) in self.whole

    def around(
        self, func: Callable[..., Any], call: Call, returns_nothing: bool, is_beneath_autograd: bool
    ) -> Callable[..., Any]:
        """`func`, which gives other values than its own."""

        def grafted(*args: Any, **kwargs: Any) -> Any:
            given = [each for _, each in slots_of("", (args, kwargs))]
            with DisableTorchFunction(), DisableTorchDispatch():
                again = self._in_float64(func, call, args, kwargs)
            before = [_version(each) for each in given]
            result = func(*args, **kwargs)
            written = {
                id(each) for each, old in zip(given, before, strict=True) if _version(each) != old
            }
            memories = {_memory(each) for each in given if id(each) not in written}
            with DisableTorchFunction(), DisableTorchDispatch():
                whole = args[0] if returns_nothing else result
                found: dict[int, Tensor] = {}
                for slot, own in slots_of("output", whole):
                    other = self.other(call, slot, own, again)
                    if other is not None:
                        views = _memory(own) in memories
                        found[id(own)] = _replaced(call, own, other, views, is_beneath_autograd)
                return result if returns_nothing else _with(result, found)

        return grafted

    def of_module(self, call: Call, result: Any) -> Any:
        """What a module gives: other values, if it is one of those that are replaced."""
        if not self.has(call.step, call.op, call.call):
            return result
        found: dict[int, Tensor] = {}
        with DisableTorchFunction(), DisableTorchDispatch():
            for slot, own in slots_of("output", result):
                other = self.other(call, slot, own, {})
                if other is not None:
                    found[id(own)] = _replaced(call, own, other, True, False)
            return _with(result, found)

    def _in_float64(
        self, func: Callable[..., Any], call: Call, args: Any, kwargs: Any
    ) -> Mapping[str, Tensor]:
        if None not in self.values[call.step, call.op, call.call].values():
            return {}
        from torch.utils._pytree import tree_map

        given, named = tree_map(wide, (args, kwargs))
        with torch.no_grad():
            return dict(slots_of("output", func(*given, **named)))

    def other(
        self, call: Call, slot: str, own: Tensor, again: Mapping[str, Tensor]
    ) -> Tensor | None:
        """What stands in place of the result `own`, if it is replaced."""
        place = call.step, str(call.op), call.call
        wanted = self.values.get(place, {})
        if slot not in wanted:
            return None
        load = wanted[slot]
        if load is None and slot not in again:
            raise CaptureError(
                f"{call.op} is a module: only ops can be run in float64",
                hint="name an op in it, or leave --float64 out",
            )
        other = again[slot] if load is None else load(own)
        other = other.to(own.device, own.dtype).reshape(own.shape)
        if self.rows is not None:
            other = _in_rows(call, own, other, self.rows)
        self.done[place] = f"{call.op}#{call.call} {slot}, token {call.step}"
        return other


def _ends_with(path: str, end: str) -> bool:
    """Whether a module's path ends with `end`; a graph may know no more of it than that."""
    plain = path.partition("@")[0]
    return plain == end or not end or end == ROOT or plain.endswith(f".{end}")


def wide(leaf: Any) -> Any:
    """A tensor or a dtype in float64, if it is one of floats."""
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    if isinstance(leaf, Tensor):
        is_float = leaf.is_floating_point()
        return leaf.detach().to(torch.float64 if is_float else leaf.dtype, copy=True)
    return leaf


def _in_rows(call: Call, own: Tensor, other: Tensor, rows: Sequence[int]) -> Tensor:
    if not own.dim() or max(rows) >= own.shape[0]:
        raise CaptureError(
            f"{call.op}#{call.call} has {list(own.shape)}: there is no row {max(rows)}",
            hint="rows are indices of the first dim, from 0",
        )
    mixed = own.detach().clone()
    mixed[list(rows)] = other[list(rows)]
    return mixed


def _replaced(
    call: Call, own: Tensor, other: Tensor, is_view: bool, is_beneath_autograd: bool
) -> Tensor:
    if not is_view:  # fresh memory, or memory that the call wrote to
        own.data.copy_(other)
        return own
    if is_beneath_autograd:
        raise CaptureError(
            f"{call.op}#{call.call} gives memory that it took: nothing can be put in its place",
            hint="name the op that computed the value, or use --mode eager",
        )
    passed: Callable[..., Tensor] = _PassedBack.apply
    return passed(own, other)


def _with(result: Any, found: Mapping[int, Tensor]) -> Any:
    """`result` with other tensors in it; itself where all were written in place."""
    if all(id(each) == known for known, each in found.items()):
        return result
    from torch.utils._pytree import tree_map_only

    return tree_map_only(Tensor, lambda each: found.get(id(each), each), result)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # torch counts no writes to those


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # it has no storage of its own
        return id(tensor)
