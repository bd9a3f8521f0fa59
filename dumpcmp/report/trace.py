"""The report as a trace for Perfetto: calls in order of execution, ranks as processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.report.graphs_of import error_of

_TICK = 10  # microseconds that a call takes in the trace: its length means nothing


@dataclass(slots=True, eq=False)
class TracedCall:
    """One call, forward or backward, from its first tick to its last."""

    site: Site
    is_backward: bool
    rows: list[Row]
    last: int  # the last call that ran inside it


def write_trace(outcome: Outcome, path: Path) -> Path:
    """Write the trace as JSON of Chrome's trace events."""
    path.parent.mkdir(parents=True, exist_ok=True)
    calls = _calls(outcome)
    ranks = sorted({rank for call in calls for row in call.rows for rank, _ in row.by_rank}) or [0]
    events = [*_names(ranks), *_events(calls, ranks)]
    told = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"answer": outcome.word}}
    write_whole(path, json.dumps(told, allow_nan=False))
    return path


def _calls(outcome: Outcome) -> list[TracedCall]:
    """Calls in order; a module lasts as long as what follows it runs inside it."""
    found: dict[tuple[Site, bool], TracedCall] = {}
    for row in outcome.rows:
        name = row.key.site, row.key.slot.is_gradient
        call = found.setdefault(name, TracedCall(*name, [], len(found)))
        call.rows.append(row)
    calls = list(found.values())
    _stretch(calls)
    return calls


def _stretch(calls: Sequence[TracedCall]) -> None:
    holders: list[TracedCall] = []
    for place, call in enumerate(calls):
        while holders and not _runs_in(call, holders[-1]):
            holders.pop()
        for holder in holders:
            holder.last = place
        if call.site.op.is_module:
            holders.append(call)


def _runs_in(call: TracedCall, holder: TracedCall) -> bool:
    same = call.site[:2] == holder.site[:2] and call.is_backward == holder.is_backward
    return same and call.site.op.is_inside(holder.site.op)


def _names(ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
        for thread, name in ((1, "forward"), (2, "backward")):
            told = {"name": name}
            yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": told}


def _events(calls: Sequence[TracedCall], ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    for place, call in enumerate(calls):
        row = min(call.rows, key=lambda r: (not r.root, not r.verdict.fails, r.key.slot.is_input))
        held = dict(row.by_rank)
        for rank in held or ranks:
            yield {
                "name": f"{row.verdict}{' root' if row.root else ''} {call.site.op}",
                "ph": "X",
                "ts": place * _TICK,
                "dur": (call.last - place + 1) * _TICK - 1,
                "pid": rank,
                "tid": 2 if call.is_backward else 1,
                "args": _arguments(row, held.get(rank)),
            }


def _arguments(row: Row, on_rank: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {"value": str(row.key), "verdict": row.verdict.value}
    told |= {"reason": row.reason, "cause": str(row.cause or ""), "source": row.source}
    told["rel_l2"] = None if row.metrics is None else f"{row.metrics.rel_l2:.6g}"
    told |= {"log10(error/tolerance)": error_of(row), "rel_l2 of the rank": on_rank}
    return {name: fact for name, fact in told.items() if fact not in (None, "")}
