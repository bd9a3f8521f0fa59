"""Steps that both runs have bit for bit: what there is to say of them is in golden's columns.

Their values are their own partners, measured where they lie, and pass: nothing is paired, laid out,
run again, judged or blamed value by value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.rankstep import RankStep
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.sameness import same_contents
from dumpcmp.archive.schema import CALL_FIELDS, NO_ROW
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.side import OpenRun, archive_at
from dumpcmp.measure.metrics import extent_of
from dumpcmp.nouns.equal_rows import EqualRows, ValueName
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Record

_SOURCE = CALL_FIELDS.index("source")


@dataclass(frozen=True, slots=True, eq=False)
class SameStep:
    """One step of both runs, and how much of the runs it and those before it are."""

    golden: OpenRun
    target: OpenRun
    number: int  # as golden counts
    rows: EqualRows
    contents: Contents  # golden's, which are the target's but for where they lie
    weights: tuple[tuple[Record, Record], ...]  # on both sides
    share: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of values on both sides."""
        rows = self.contents.rows
        return 2 * int(rows["nbytes"][rows["same"] == NO_ROW].sum())

    @property
    def devices(self) -> set[str]:
        """Where the values lay."""
        return {form.device for form in self.contents.forms}

    def pass_by(self) -> None:
        """Let both runs know what they had in it, as if a Side had been taken."""
        given = _given_out(self.contents)
        place = self.rows.model, self.rows.step
        for run in (self.golden, self.target):
            run.pass_by(place, (op for op, _ in self.contents.ops), given)

    def telling(self, tell: Tell | None, done: int) -> Tell | None:
        """As of a Span."""
        if tell is None:
            return None
        return lambda now, total: tell(done + now, int((done + total) / self.share))


def same_step(golden: OpenRun, target: OpenRun, step: int) -> SameStep | None:
    """The step that golden counts so, where both runs have it bit for bit and it can be read."""
    place = golden.place_of(step)
    if place is None or place != target.place_of(step):
        return None
    if golden.tap.layers or target.tap.layers:
        return None
    ours, theirs = (run.archive.sole_step(*place) for run in (golden, target))
    contents = same_contents(ours, theirs)
    if contents is None or ours is None or theirs is None:
        return None
    try:
        extents = _measured(archive_at(golden.archive.path), contents)
        _check_ends(archive_at(target.archive.path), theirs, contents)
    except DumpcmpError:  # which is told of where it is read again
        return None
    if not extents[:, 1].all():  # where nothing is finite there is more to be said
        return None
    rows = _rows(place, contents, extents, golden.names)
    return SameStep(golden, target, step, rows, contents, tuple(_weights(ours, theirs, contents)))


def _weights(
    golden: RankStep, target: RankStep, contents: Contents
) -> Iterator[tuple[Record, Record]]:
    """The parameters and buffers, in order of execution."""
    is_weight = np.array([slot.is_weight for slot in contents.slots])
    order = _as_they_ran(contents.rows)
    for row in order[is_weight[contents.rows["form"][order]]].tolist():
        key = Key(golden.model, golden.step, *contents.name(row))
        yield golden.record(key), target.record(key)


def _measured(archive: Archive, contents: Contents) -> NDArray[np.float64]:
    """Of each row that has bytes of its own: elements, those that are finite, and their Extent."""
    found = []
    for value in archive.stored_in(contents):
        num_finite, extent = extent_of(value)
        extremes = extent.min, extent.max, extent.mean, extent.norm
        found.append((value.numel, num_finite, *extremes, extent.num_nan, extent.num_inf))
    return np.array(found, np.float64)


def _check_ends(archive: Archive, step: RankStep, contents: Contents) -> None:
    """Read what the model gave in the end, of the side that is not measured."""
    is_root = np.array([op == ROOT for op, _ in contents.ops])
    for row in np.flatnonzero(is_root[contents.rows["call"]]).tolist():
        key = Key(step.model, step.step, *contents.name(row))
        if key.slot.is_output:
            archive.load(step.record(key))


def _firsts(rows: NDArray[np.void]) -> NDArray[np.intp]:
    """Of each row, that which has its bytes."""
    own = np.arange(len(rows))
    return np.where(rows["same"] == NO_ROW, own, rows["same"].astype(np.intp))


def _given_out(contents: Contents) -> frozenset[str]:
    """Digests of what ops gave out, as of a Side."""
    rows, forms = contents.rows, contents.forms
    told = zip(contents.slots, forms, strict=True)
    are_given = [slot.is_output and math.prod(form.shape) > 1 for slot, form in told]
    given = rows["digest"][_firsts(rows)[np.array(are_given)[rows["form"]]]]
    return frozenset(digest.decode("ascii", "replace") for digest in given.tolist())


def _rows(
    place: tuple[str, int],
    contents: Contents,
    extents: NDArray[np.float64],
    known: dict[ValueName, ValueName],
) -> EqualRows:
    rows, forms = contents.rows, contents.forms
    order = _as_they_ran(rows)
    measured = np.cumsum(rows["same"] == NO_ROW) - 1  # which of `extents` is of a row
    slots, sources = contents.slots, [str(call[_SOURCE]) for call in contents.listed_calls.listed]
    calls, kinds = rows["call"][order].tolist(), rows["form"][order].tolist()
    told = zip(calls, kinds, strict=True)
    names = [
        ValueName._make(
            (place[0], *contents.ops[call], slots[kind], forms[kind].dtype, sources[call])
        )
        for call, kind in told
    ]
    return EqualRows(
        *place,
        [known.setdefault(name, name) for name in names],
        [forms[kind].shape for kind in kinds],
        rows["order"][order],
        measured[_firsts(rows)][order].astype(np.uint32),
        extents,
    )


def _as_they_ran(rows: NDArray[np.void]) -> NDArray[np.intp]:
    """The rows of each call together, calls in order of execution."""
    order = np.argsort(rows["order"], kind="stable")
    calls = rows["call"][order].tolist()
    place = {call: number for number, call in enumerate(dict.fromkeys(calls))}
    return order[np.argsort([place[call] for call in calls], kind="stable")]
