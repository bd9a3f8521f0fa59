"""Lays the microbatches of a pipeline beside one another, as if they were ranks on an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import MICROBATCH, parse_layout
from dumpcmp.nouns.record import Call, Record


def merged(listing: Listing) -> Listing:
    """`listing` with the steps that are microbatches of one step merged into that step.

    Records keep their own keys; their layouts say which microbatch they are.
    """
    steps = _steps(listing.values)
    if not steps:
        return listing
    values: dict[Key, list[Record]] = {}
    for key, records in listing.values.items():
        step = steps.get((key.model, key.step), key.step)
        whole = replace(key, step=step)
        values.setdefault(whole, []).extend(_linked(record, steps) for record in records)
    calls: dict[Site, Call] = {}
    for site, call in listing.calls.items():
        step = steps.get((site.model, site.step), site.step)
        calls.setdefault(site._replace(step=step), call)
    merged_values = {key: tuple(records) for key, records in values.items()}
    return replace(listing, values=merged_values, calls=calls)


def _linked(record: Record, steps: Mapping[tuple[str, int], int]) -> Record:
    """`record` with its link into the step that its own step is a part of."""
    same = record.same_as
    if same is None:
        return record
    return replace(
        record, same_as=replace(same, step=steps.get((same.model, same.step), same.step))
    )


def _steps(values: Mapping[Key, tuple[Record, ...]]) -> dict[tuple[str, int], int]:
    """The step that each step with a microbatch is a part of: a new one begins at number 0."""
    numbers: dict[tuple[str, int], int] = {}
    for key, records in values.items():
        if (key.model, key.step) not in numbers and (number := _number(records[0])) is not None:
            numbers[key.model, key.step] = number
    steps: dict[tuple[str, int], int] = {}
    begun: dict[str, int] = {}
    for (model, step), number in sorted(numbers.items()):
        begun[model] = begun.get(model, 0 if number else -1) + (number == 0)
        steps[model, step] = begun[model]
    return steps


def _number(record: Record) -> int | None:
    coordinates = parse_layout(record.layout).coordinates if record.layout else ()
    return next((c.index for c in coordinates if c.axis == MICROBATCH), None)
