"""What a graph computes with, stored or not: told to the archive when the graph runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from dumpcmp.nouns.graph_runs import (
    GRAPH,
    TARGET,
    SlotOfCall,
    ValueOfGraph,
    runs_written,
)
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.record import Call
from dumpcmp.taps.modes.traced import Mark
from dumpcmp.taps.recording.step import Step

FixedSizes = list[int] | None  # None: they vary


class GraphValue(NamedTuple):
    """One value of dynamo's graph, and the slots of its ops that it is."""

    dtype: str
    shape: FixedSizes
    stride: FixedSizes
    marks: list[Mark]

    @classmethod
    def of(cls, tensor: Tensor) -> GraphValue:
        """One that is traced as `tensor`, with no Marks yet."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(dtype, _sizes(tensor.shape), _sizes(tensor.stride()), [])


def _sizes(sizes: Sequence[Any]) -> FixedSizes:
    return list(sizes) if all(type(size) is int for size in sizes) else None


def read_value(listed: Sequence[Any]) -> GraphValue:
    """A value out of the table of generated code."""
    dtype, shape, stride, marks = listed
    return GraphValue(dtype, shape, stride, [Mark(op, Slot(slot)) for op, slot in marks])


def merged(values: Iterable[GraphValue]) -> list[GraphValue]:
    """Each value once: AOTAutograd may trace a graph more than once."""
    found: dict[Mark, GraphValue] = {}
    for value in values:
        known = next((found[mark] for mark in value.marks if mark in found), None)
        if known is None:
            known = GraphValue(value.dtype, value.shape, value.stride, [])
        for mark in value.marks:
            if mark not in found:
                found[mark] = known
                known.marks.append(mark)
    return list({id(value): value for value in found.values()}.values())


class RunsTold:
    """Tells the archive of each run of generated code which values of ops are one value."""

    def __init__(self) -> None:
        self._runs = weakref.WeakKeyDictionary[Step, int]()
        self._told = weakref.WeakKeyDictionary[Step, int]()  # Calls that tell of them

    def tell(
        self,
        step: Step,
        calls: Sequence[Call | None],
        values: Sequence[GraphValue],
        stored: Iterable[tuple[str, Sequence[Mark]]],
        number: int,
    ) -> int:
        """Tell of a run; gives its number within the step, a new one where it has none."""
        if number < 0:
            number = self._runs[step] = self._runs.get(step, -1) + 1
        kernels = [(mark, kernel) for kernel, marks in stored for mark in marks]
        for owner in _owners(step, calls):
            own = {n for n, call in enumerate(calls) if call and step.owner_of(call) is owner}
            listed = [value for each in values if (value := _of_owner(each, calls, own))]
            held: dict[SlotOfCall, str] = {}
            for mark, kernel in kernels:
                if mark.op in own:
                    held.setdefault(_place(calls, mark), kernel)
            for text in runs_written(number, listed, held):
                count = self._told.get(owner, 0)
                self._told[owner] = count + 1
                owner.call(GRAPH, count, TARGET, text, "")
        return number


def _owners(step: Step, calls: Sequence[Call | None]) -> list[Step]:
    owners = {id(owner): owner for call in calls if call for owner in [step.owner_of(call)]}
    return list(owners.values())


def _of_owner(
    value: GraphValue, calls: Sequence[Call | None], own: set[int]
) -> ValueOfGraph | None:
    """A value as one step has it: links stay within a step."""
    places = tuple(_place(calls, mark) for mark in value.marks if mark.op in own)
    if not places:
        return None
    shape = None if value.shape is None else tuple(value.shape)
    stride = None if value.stride is None else tuple(value.stride)
    return ValueOfGraph(value.dtype, shape, stride, places)


def _place(calls: Sequence[Call | None], mark: Mark) -> SlotOfCall:
    call = calls[mark.op]
    assert call is not None
    return str(call.op), call.call, str(mark.slot)
