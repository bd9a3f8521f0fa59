"""The report for Model Explorer: both runs as graphs, verdicts and errors on them, and their sync.

`golden.json` and `mine.json` are graphs, `verdict.json` and `error.json` node data of both, and
`sync.json` says which node is which, for two panes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict

_COLOURS = {"fails": "#d55e00", "doubt": "#e69f00", "fine": "#9ecae1"}
_DOUBTFUL = frozenset((Verdict.INCONCLUSIVE, Verdict.FLIP, Verdict.DTYPE))
_GRADIENT = ((0.0, "#deebf7"), (0.5, "#fdd064"), (1.0, "#5a051e"))


@dataclass(slots=True, eq=False)
class CallNode:
    """One call of a run, with the rows of its values."""

    site: Site
    rows: list[Row] = field(default_factory=list)
    given: list[tuple[Site, str]] = field(default_factory=list)  # by whom, into which slot

    @property
    def worst(self) -> Row:
        """The row that tells most of it: a root, a failure, an output."""
        return min(self.rows, key=lambda r: (not r.root, not r.verdict.fails, r.key.slot.is_input))


def write_graphs(outcome: Outcome, path: Path) -> Path:
    """Write the files into the directory `path`."""
    path.mkdir(parents=True, exist_ok=True)
    sides = {"golden": calls_of(outcome, "golden"), "mine": calls_of(outcome, "mine")}
    files: dict[str, Any] = {
        name: {"label": name, "graphs": [_graph(name, calls)]} for name, calls in sides.items()
    }
    files["verdict"] = {name: _verdicts(calls) for name, calls in sides.items()}
    files["error"] = {name: _errors(calls) for name, calls in sides.items()}
    files["sync"] = _sync(outcome, sides)
    for name, told in files.items():
        write_whole(path / f"{name}.json", json.dumps(told, indent=1, allow_nan=False))
    return path


def calls_of(outcome: Outcome, side: str) -> dict[Site, CallNode]:
    """The calls of one side and the arrows between them; modules only if nothing runs in them."""
    rows = list(outcome.rows)
    keys = [row.golden_key if side == "golden" else row.target_key for row in rows]
    calls: dict[Site, CallNode] = {}
    for row, key in zip(rows, keys, strict=True):
        if key is not None:
            calls.setdefault(key.site, CallNode(key.site)).rows.append(row)
    running = {site.op.module for site in calls if not site.op.is_module}
    calls = {
        site: call
        for site, call in calls.items()
        if not site.op.is_module or not any(_is_in(one, site.op.module) for one in running)
    }
    for taker, source, whose in outcome.background.arrows:
        to, by = keys[taker], keys[source]
        if to and by and whose in ("both", side) and to.site in calls and by.site in calls:
            calls[to.site].given.append((by.site, to.slot))
    return calls


def _is_in(module: str, holder: str) -> bool:
    return module == holder or module.startswith(f"{holder}.") or holder == "<root>"


def _graph(name: str, calls: Mapping[Site, CallNode]) -> dict[str, Any]:
    return {"id": name, "nodes": [_node(call) for call in calls.values()]}


def _node(call: CallNode) -> dict[str, Any]:
    site = call.site
    label = site.op.function or site.op.module.rpartition(".")[2]
    inside = site.op.module.replace(".", "/")
    worst = call.worst
    told = {"verdict": worst.verdict.value, "reason": worst.reason, "source": worst.source}
    return {
        "id": str(site),
        "label": label,
        "namespace": f"{site.model}/token {site.step}/{inside}",
        "attrs": [{"key": key, "value": value} for key, value in told.items() if value],
        "incomingEdges": [
            {"sourceNodeId": str(by), "sourceNodeOutputId": "0", "targetNodeInputId": slot}
            for by, slot in dict.fromkeys(call.given)
        ],
        "outputsMetadata": list(_outputs(call)),
    }


def _outputs(call: CallNode) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(r for r in call.rows if r.key.slot.is_output):
        dtype, shape = row.golden_dtype or row.target_dtype, row.golden_shape or row.target_shape
        sizes = ",".join(map(str, shape or ()))
        attrs = {"tensor_shape": f"{dtype}[{sizes}]", "tensor_name": str(row.key)}
        listed = [{"key": key, "value": value} for key, value in attrs.items()]
        yield {"id": str(number), "attrs": listed}


def _verdicts(calls: Mapping[Site, CallNode]) -> dict[str, Any]:
    results = {}
    for call in calls.values():
        row = call.worst
        tone = "fails" if row.verdict.fails else "doubt" if row.verdict in _DOUBTFUL else "fine"
        word = f"{row.verdict}{' (root)' if row.root else ''}"
        results[str(call.site)] = {"value": word, "bgColor": _COLOURS[tone]}
    return {"name": "verdict", "results": results}


def _errors(calls: Mapping[Site, CallNode]) -> dict[str, Any]:
    """log10 of the error in units of the tolerance; calls without such a number are left out."""
    found = {str(call.site): error_of(call.worst) for call in calls.values()}
    results = {name: {"value": size} for name, size in found.items() if size is not None}
    gradient = [{"stop": stop, "bgColor": colour} for stop, colour in _GRADIENT]
    return {"name": "log10(error / tolerance)", "results": results, "gradient": gradient}


def error_of(row: Row) -> float | None:
    """log10 of the error of a row in units of what is admissible; None where it has none."""
    limit = row.judgement.limit
    if row.metrics is None or not limit > 0 or not 0 < row.metrics.rel_l2 < math.inf:
        return None
    return round(math.log10(row.metrics.rel_l2 / limit), 4)


def _sync(outcome: Outcome, sides: Mapping[str, Mapping[Site, CallNode]]) -> dict[str, Any]:
    """Which of golden's nodes is which of mine; each is named once."""
    partners: dict[Site, Site] = {}
    taken: set[Site] = set()
    for row in outcome.rows:
        if row.golden_key is None or row.target_key is None:
            continue
        ours, theirs = row.golden_key.site, row.target_key.site
        known = ours in sides["golden"] and theirs in sides["mine"]
        if known and ours not in partners and theirs not in taken:
            partners[ours] = theirs
            taken.add(theirs)
    return {
        "type": "sync_navigation",
        "mappingEntries": [
            {"leftNodeIds": [str(ours)], "rightNodeIds": [str(theirs)]}
            for ours, theirs in partners.items()
        ],
        "disableMappingFallback": True,
        "showDiffHighlights": True,
    }
