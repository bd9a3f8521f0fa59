"""Makes a pipeline one model: its stages together, its microbatches as ranks on an axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.align.stages import microbatch_of
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.layouts import Coordinate, parse_layout
from dumpcmp.nouns.record import Call, Record

_OwnStep = tuple[str, int]  # a model and its own number of a step


def merged(listing: Listing) -> Listing:
    """`listing` with the steps that are microbatches of one step merged into that step.

    Stages that lie on one rank are models of their own there: they are merged, too. Records keep
    their own keys; their layouts say which microbatch they are.
    """
    numbers = _numbers(listing.values)
    if not numbers:
        return listing
    steps = _steps(numbers)
    whole = _Whole(steps, _stages(listing.values, {model for model, _ in steps}))
    values: dict[Key, list[Record]] = {}
    for key, records in listing.values.items():
        values.setdefault(whole.key(key), []).extend(whole.linked(record) for record in records)
    calls: dict[Site, Call] = {}
    for site, call in listing.calls.items():
        calls.setdefault(site._replace(**whole.place(*site[:3])), call)
    merged_values = {key: _told(records, numbers) for key, records in values.items()}
    return replace(listing, values=merged_values, calls=calls)


def merged_places(listing: Listing) -> dict[_OwnStep, _OwnStep]:
    """The model and step that each step with a microbatch is a part of, as `merged` has them."""
    numbers = _numbers(listing.values)
    steps = _steps(numbers)
    models = _stages(listing.values, {model for model, _ in steps}) if numbers else {}
    return {place: (models.get(place[0], place[0]), step) for place, step in steps.items()}


@dataclass(frozen=True)
class _Whole:
    """Which step each microbatch is a part of, and which model each stage."""

    steps: Mapping[_OwnStep, int]
    models: Mapping[str, str]

    def place(self, model: str, step: int, op: Op) -> dict[str, Any]:
        """What a call is called in the whole; what stages send each other is no part of that."""
        whole = self.steps.get((model, step), step)
        return {"model": model if _is_moved(op) else self.models.get(model, model), "step": whole}

    def key(self, key: Key) -> Key:
        return replace(key, **self.place(key.model, key.step, key.op))

    def linked(self, record: Record) -> Record:
        """`record` with its link into the step that its own step is a part of."""
        same = record.same_as
        return record if same is None else replace(record, same_as=self.key(same))


def _is_moved(op: Op) -> bool:
    return op.function in (Collective.SEND, Collective.RECV)


def _stages(values: Iterable[Key], staged: set[str]) -> dict[str, str]:
    """The model that each stage is a part of: the first one, as long as no call is in both."""
    ops: dict[str, set[str]] = defaultdict(set)
    for key in values:
        if key.model in staged and not _is_moved(key.op):
            ops[key.model].add(f"{key.op}#{key.call} {key.slot}")
    found: dict[str, str] = {}
    for model, own in ops.items():
        first = next((m for m in found.values() if not own & ops[m]), model)
        found[model] = first
        ops[first] = ops[first] | own
    return found


def _numbers(values: Mapping[Key, tuple[Record, ...]]) -> dict[_OwnStep, Coordinate]:
    """The microbatch that each step is, where one is."""
    numbers: dict[_OwnStep, Coordinate] = {}
    for key, records in values.items():
        if (key.model, key.step) not in numbers and (number := microbatch_of(records[0])):
            numbers[key.model, key.step] = number
    return numbers


def _steps(numbers: Mapping[_OwnStep, Coordinate]) -> dict[_OwnStep, int]:
    """The step that each step with a microbatch is a part of: a new one begins at number 0."""
    steps: dict[_OwnStep, int] = {}
    begun: dict[str, int] = {}
    for (model, step), number in sorted(numbers.items(), key=lambda item: item[0]):
        is_first = number.index == 0
        begun[model] = begun.get(model, -1 if is_first else 0) + is_first
        steps[model, step] = begun[model]
    return steps


def _told(records: list[Record], numbers: Mapping[_OwnStep, Coordinate]) -> tuple[Record, ...]:
    """`records` of one value, each with its microbatch, also where autograd ran after that.

    What a rank has once is of all microbatches, as a gradient at the end of a schedule.
    """
    if len({record.rank for record in records}) == len(records):
        return tuple(records)
    return tuple(_placed(one, numbers.get((one.key.model, one.key.step))) for one in records)


def _placed(record: Record, number: Coordinate | None) -> Record:
    if number is None or microbatch_of(record) is not None:
        return record
    layout = parse_layout(record.layout)
    return replace(record, layout=str(replace(layout, coordinates=(*layout.coordinates, number))))
