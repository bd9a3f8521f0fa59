"""How near a reported place is to a planted fault, in the graph as it was exported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    if row.target_key is not None and row.target_key.slot.is_weight:
        name = f"{row.target_key.op}.{row.target_key.slot.name}".removeprefix("<root>.")
        if name == fault.initialiser:
            return EXACT
    graph = model.graph
    ours = {node.name for node in graph.node if node.name == fault.node} or _inside(
        graph, fault.node, ()
    )
    if row.target_key is not None:
        call = mine.calls.get(row.target_key.site)
        reported = _inside(
            graph, call.source.rpartition(" ")[2] if call else "", _outputs(mine, row)
        )
        away = _distance(graph, ours, reported)
        if away <= 2:
            return EXACT if away <= 1 else NEAR
    paths = {_path(graph, name) for name in ours}
    assert key is not None
    if any(key.op.module == path for path in paths if path):
        return EXACT if row.target_key is None else NEAR
    return ELSEWHERE


def _outputs(mine: dumpcmp.Archive, row: Any) -> tuple[str, ...]:
    del mine, row
    return ()


def _inside(graph: Any, name: str, outputs: Iterable[str]) -> set[str]:
    """The exported nodes that a node of the optimised graph may be made of, by their names."""
    del outputs
    known = {node.name for node in graph.node}
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

    class _Graph:
        def __init__(self) -> None:
            self.graph = graph

    place = NodePlaces.of(_Graph()).by_node.get(name)  # type: ignore[arg-type]
    return place.path if place else ""
