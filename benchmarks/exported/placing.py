"""How near a reported place is to a planted fault, in the graph as it was exported."""

from __future__ import annotations

from typing import Any

import onnx

import dumpcmp
from benchmarks.exported.faults import PlantedFault
from dumpcmp.nouns.outcome import Outcome

EXACT, NEAR, ELSEWHERE, MISSED, UNKNOWN = "at the node", "near", "elsewhere", "missed", "unknown"


def placed(outcome: Outcome, mine: dumpcmp.Archive, model: Any, fault: PlantedFault) -> str:
    """What became of a planted fault."""
    if outcome.exit_code == 0:
        return MISSED
    if outcome.exit_code == 2 or outcome.first_divergence is None:
        return UNKNOWN
    row = outcome.first_divergence
    key = row.target_key or row.golden_key
    if key is not None and key.slot.is_weight:
        name = f"{key.op}.{key.slot.name}".removeprefix("<root>.")
        if name == fault.initialiser:
            return EXACT
    graph = model.graph
    ours = _inside(graph, fault.node)
    if row.target_key is not None:
        call = mine.calls.get(row.target_key.site)
        source = call.source if call else ""
        if fault.word == "kernel" and source.endswith(fault.node):
            return EXACT
        if fault.word == "cast" and fault.node.removesuffix("_0") in source:
            return EXACT
        reported = _inside(graph, _node_in(source))
        away = _distance(graph, ours, reported)
        if away <= 2:
            return EXACT if away <= 1 else NEAR
    paths = {_path(graph, name) for name in ours}
    assert key is not None
    if any(key.op.module == path for path in paths if path):
        return EXACT if row.target_key is None else NEAR
    return ELSEWHERE


def _node_in(source: str) -> str:
    """The node that a call's source names, behind the user's line."""
    place, _, name = source.partition(" ")
    return name if ":" in place and name else source


def _inside(graph: Any, name: str) -> set[str]:
    """The exported nodes that a node of the optimised graph may be made of, by their names."""
    known = {node.name for node in graph.node}
    name = name.removeprefix("fused ").removesuffix("_nchwc")
    makers = {value: node.name for node in graph.node for value in node.output}
    name = makers.get(name, name)
    while name and name not in known:
        name = name.rpartition("/")[0]
    return {name} & known


def _distance(graph: Any, ours: set[str], theirs: set[str]) -> int:
    """How many links lie between two sets of nodes; many where none do."""
    takers: dict[str, set[str]] = {}
    for node in graph.node:
        for value in node.input:
            takers.setdefault(value, set()).add(node.name)
    beside: dict[str, set[str]] = {node.name: set() for node in graph.node}
    for node in graph.node:
        for value in node.output:
            for taker in takers.get(value, ()):
                beside[node.name].add(taker)
                beside[taker].add(node.name)
    reached, away = set(ours), 0
    while not reached & theirs and away < 9:
        reached |= {other for name in reached for other in beside.get(name, ())}
        away += 1
    return away if reached & theirs else 99


def _path(graph: Any, name: str) -> str:
    from dumpcmp.taps.onnx.places import NodePlaces

    place = NodePlaces.of(onnx.ModelProto(graph=graph)).by_node.get(name)
    return place.path if place else ""
