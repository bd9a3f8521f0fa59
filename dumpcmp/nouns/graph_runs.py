"""Runs of compiled graphs, as an archive tells of them: which values of its ops are one value.

A fused kernel stores few of the values that it computes. What the graph asks for is known all the
same: each run of one is a Call of a reserved op, whose arguments hold it as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import EFFECTS, Op
from dumpcmp.nouns.record import Call

GRAPH = Op(f"{EFFECTS}/graph")  # the reserved op
TARGET = "dumpcmp.graph"  # of its Calls: no function that could be run again
MOST_VALUES = 2048  # that one Call tells of: its text is bounded

SlotOfCall = tuple[str, int, str]  # op, number of its call, slot


@dataclass(frozen=True, slots=True)
class ValueOfGraph:
    """A value of a graph: where its ops take and give it, the giver first."""

    dtype: str
    shape: tuple[int, ...] | None  # None: it varies
    stride: tuple[int, ...] | None
    places: tuple[SlotOfCall, ...]


@dataclass(frozen=True, slots=True)
class GraphRun:
    """What one Call tells of a run of a graph, or of its backward."""

    number: int  # of the run within its step; the same for the backward of the same graph
    values: tuple[ValueOfGraph, ...]
    stored: Mapping[SlotOfCall, str]  # the kernel that stored a value, and which call of it


def runs_written(
    number: int,
    values: Sequence[ValueOfGraph],
    stored: Mapping[SlotOfCall, str],
) -> Iterator[str]:
    """A run as arguments of Calls: several where there is much to tell."""
    for first in range(0, max(1, len(values)), MOST_VALUES):
        some = values[first : first + MOST_VALUES]
        yield _written(number, some, stored if first == 0 else {})


def _written(number: int, values: Iterable[ValueOfGraph], stored: Mapping[SlotOfCall, str]) -> str:
    calls: dict[tuple[str, int], int] = {}

    def at(place: SlotOfCall) -> list[int | str]:
        return [calls.setdefault(place[:2], len(calls)), place[2]]

    told = [[v.dtype, v.shape, v.stride, [at(place) for place in v.places]] for v in values]
    by_kernel: dict[str, list[Any]] = {}
    for place, kernel in stored.items():
        by_kernel.setdefault(kernel, []).append(at(place))
    tree = {"run": number, "calls": list(calls), "values": told, "stored": by_kernel}
    return json.dumps(tree, separators=(",", ":"))


def read_runs(calls: Iterable[Call]) -> Iterator[GraphRun]:
    """The runs of graphs that are told of among the effects of a step."""
    for call in calls:
        if call.op == GRAPH:
            yield _read(call)


def _read(call: Call) -> GraphRun:
    try:
        tree = json.loads(call.arguments)
        named = [(str(op), int(number)) for op, number in tree["calls"]]
        values = tuple(
            ValueOfGraph(str(dtype), _sizes(shape), _sizes(stride), _places(places, named))
            for dtype, shape, stride, places in tree["values"]
        )
        stored = {
            place: str(kernel)
            for kernel, places in tree["stored"].items()
            for place in _places(places, named)
        }
        return GraphRun(int(tree["run"]), values, stored)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ArchiveError(
            f"{call.site.place}: what it tells of a compiled graph is damaged: {error}",
            hint="dumpcmp audit says which part of the archive has it",
        ) from None


def _sizes(listed: Any) -> tuple[int, ...] | None:
    return None if listed is None else tuple(int(size) for size in listed)


def _places(listed: Any, named: Sequence[tuple[str, int]]) -> tuple[SlotOfCall, ...]:
    return tuple((*named[number], str(slot)) for number, slot in listed)
