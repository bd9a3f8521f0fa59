"""Runs a model by many schedules and names the first op that treats equal rows unequally."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.capturing import capture
from dumpcmp.invariance.invariance_report import InvarianceReport, InvarianceRow
from dumpcmp.invariance.row_pairs import (
    Compared,
    NameOfValue,
    RunRows,
    axes_of,
    compare_rows,
    first_unequal,
)
from dumpcmp.invariance.schedules import (
    VARY,
    Schedule,
    VariedModel,
    alone,
    lacking,
    schedules,
    whole,
)
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.spoken import counted


def check_invariance(
    model: nn.Module,
    inputs: Any,
    *,
    vary: str | Sequence[str] = VARY,
    layers: str | Sequence[str] | None = None,
    path: str | Path | None = None,
) -> InvarianceReport:
    """Run `model` on the rows of `inputs` by other schedules, and compare each row bit by bit.

        dumpcmp.check_invariance(model, (input_ids,), vary=["batch", "decode"])

    `inputs` are the model's arguments, of which one is a tensor of token ids [batch, length]. Each
    `vary` is tried from the smallest size on. `layers` are the ops to record, as for `capture`; the
    archives are kept only if a `path` is given for them.
    """
    kinds = _kinds(vary)
    subject = VariedModel.of(model, inputs)
    was_training = model.training
    model.eval()
    try:
        with _room(path) as room:
            return _Checking(subject, room, layers).report(kinds)
    finally:
        model.train(was_training)


def _kinds(vary: str | Sequence[str]) -> list[str]:
    words = vary.split(",") if isinstance(vary, str) else list(vary)
    kinds = [word.strip() for word in words if word.strip()]
    if unknown := [kind for kind in kinds if kind not in VARY]:
        raise SelectionError(f"{unknown[0]!r} does not vary", hint=f"known: {', '.join(VARY)}")
    if not kinds:
        raise SelectionError("nothing varies", hint=f"choose of {', '.join(VARY)}")
    return list(dict.fromkeys(kinds))


@contextmanager
def _room(path: str | Path | None) -> Iterator[Path]:
    if path is not None:
        yield Path(path)
        return
    with TemporaryDirectory(prefix="dumpcmp-") as room:
        yield Path(room)


class _Checking:
    """The runs of one check. The reference of batches is each sequence alone, else the whole."""

    def __init__(
        self, subject: VariedModel, room: Path, layers: str | Sequence[str] | None
    ) -> None:
        self._subject, self._room, self._layers = subject, room, layers
        self._num_runs = 0
        self._whole = self._recorded(whole(subject))
        self._axes = axes_of(self._whole)
        self._alone: RunRows | None = None

    def _recorded(self, schedule: Schedule) -> RunRows:
        """The rows of a run, in an archive of its own."""
        path = self._room / f"{self._num_runs:02}-{schedule.vary or 'whole'}-{schedule.size}"
        self._num_runs += 1
        with capture(self._subject.model, path, layers=self._layers):
            schedule.run()
        return RunRows(Archive(path))

    def report(self, kinds: Sequence[str]) -> InvarianceReport:
        """A row for each schedule; of a kind that changes bits, none after the first that does."""
        rows: list[InvarianceRow] = []
        for kind in kinds:
            if why := lacking(self._subject, kind):
                rows.append(InvarianceRow(kind, 0, kind, Verdict.SKIPPED, reason=why))
                continue
            for schedule in schedules(self._subject, [kind]):
                rows.append(self._row(schedule))
                if rows[-1].verdict is Verdict.FAIL and kind not in ("padding", "threads"):
                    break
        return InvarianceReport(rows, self._remarks())

    def _row(self, schedule: Schedule) -> InvarianceRow:
        found = self._recorded(schedule)
        reference = self._whole
        if schedule.vary == "batch":
            if self._alone is None:
                self._alone = self._recorded(alone(self._subject))
            reference = self._alone
        return _judged(schedule, compare_rows(reference, found, self._axes))

    def _remarks(self) -> tuple[str, ...]:
        names: set[NameOfValue] = {name for name in self._whole.values if name not in self._axes}
        lost = len({name for name in names if name[2].startswith("output")})
        if not lost:
            return ()
        return (f"{counted(lost, 'output')} of ops have no dim of batch and tokens, and no rows",)


def _judged(schedule: Schedule, compared: Compared) -> InvarianceRow:
    told = schedule.vary, schedule.size, schedule.told
    counts = compared.num_rows, compared.num_unpaired
    if not compared.num_rows:
        return InvarianceRow(*told, Verdict.SKIPPED, *counts, reason="no rows could be paired")
    first = first_unequal(compared)
    if first is None:
        return InvarianceRow(*told, Verdict.PASS, *counts)
    (op, call), (request, position) = first.name, first.rows[0]
    which = f"{counted(len(first.rows), 'row')} with equal inputs, the first of sequence {request}"
    if not first.is_known:
        which = (
            f"{counted(len(first.rows), 'row')}, whose inputs could not all be paired, the first "
        )
        which += f"of sequence {request}"
    return InvarianceRow(
        *told, Verdict.FAIL, *counts, str(op), call, first.slot, request, position,
        f"{which} at position {position}",
    )  # fmt: skip
