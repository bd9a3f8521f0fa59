"""Which models on which ranks are one stage of a pipeline, and in which order stages come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.layouts import MICROBATCH, Coordinate, parse_layout
from dumpcmp.nouns.record import Record


class Holder(NamedTuple):
    """A model on a rank: a stage of a pipeline, or a share of one."""

    rank: int
    model: str


@dataclass(frozen=True)
class _Stage:
    modules: frozenset[str]
    holders: tuple[Holder, ...]


def stages_of(values: Mapping[Key, tuple[Record, ...]]) -> dict[Holder, int]:
    """The stage that each model on each rank is, where the run knows microbatches.

    Ranks that share a stage have modules in common, and stages have none. A rank may hold several
    stages, each a model of its own; its first one comes before the second one of any rank.
    """
    found: list[_Stage] = []
    for holder, modules in _in_turns(_modules(values)):
        same = [stage for stage in found if stage.modules & modules] or found[: not modules]
        joined = _Stage(
            modules.union(*(stage.modules for stage in same)),
            (*(one for stage in same for one in stage.holders), holder),
        )
        at = found.index(same[0]) if same else len(found)
        found[at : at + 1] = [joined]
        found = [stage for stage in found if stage not in same]
    return {holder: n for n, stage in enumerate(found) for holder in stage.holders}


def microbatch_of(record: Record) -> Coordinate | None:
    """The microbatch that a value belongs to, as a place on the axis of them all."""
    coordinates = parse_layout(record.layout).coordinates if record.layout else ()
    return next((c for c in coordinates if c.axis == MICROBATCH), None)


def _modules(values: Mapping[Key, tuple[Record, ...]]) -> dict[Holder, frozenset[str]]:
    """The innermost modules that each model on each rank ran in microbatches."""
    found: dict[Holder, set[str]] = defaultdict(set)
    for key, records in values.items():
        if not key.slot.is_weight and microbatch_of(records[0]) is not None:
            for record in records:
                found[Holder(record.rank, key.model)].add(key.op.module)
    return {holder: _innermost(paths) for holder, paths in found.items()}


def _innermost(paths: Iterable[str]) -> frozenset[str]:
    """Those of some modules that hold no others of them."""
    holding = {ROOT}
    for path in paths:
        while path := path.rpartition(".")[0]:
            holding.add(path)
    return frozenset(paths) - holding


def _in_turns(modules: Mapping[Holder, frozenset[str]]) -> list[tuple[Holder, frozenset[str]]]:
    """The first model of every rank, then the second ones."""
    seen: dict[int, int] = defaultdict(int)
    turns: dict[Holder, tuple[int, int]] = {}
    for holder in modules:  # models are in the order of their names
        turns[holder] = seen[holder.rank], holder.rank
        seen[holder.rank] += 1
    return sorted(modules.items(), key=lambda item: turns[item[0]])
