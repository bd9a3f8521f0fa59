"""Rows of effects among all others: what fails for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dumpcmp.comparing.side import StepName
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Row, Verdict, Why

_OF_STEPS = (Why.WIRED, Why.LEAF)  # weights that are not what golden's optimizer makes


@dataclass(slots=True, eq=False)
class Steering:
    """How training is steered otherwise than golden's, and which weights differ for it."""

    settings: Row | None = None  # that differ, in the first step that has them
    alone: Row | None = None  # what one side alone shows, such as clipping
    first: Key | None = None  # the first weight after that

    def with_causes(self, rows: Sequence[Row]) -> list[Row]:
        """`rows`, in which one cause is one root, however many weights an optimizer has made."""
        found: list[Row] = []
        moved: dict[Key, Key] = {}
        for row in rows:
            if row.cause in moved:
                found.append(row.caused_by(moved[row.cause]))
                continue
            if row.root and _is_made_by_a_step(row):
                row = self._caused(row)
                if row.cause is not None:
                    moved[row.key] = row.cause
            self._note(row)
            found.append(row)
        return found

    def _caused(self, row: Row) -> Row:
        if self.settings is not None and self.settings.key.step < row.key.step:
            return replace(row, root=False).caused_by(self.settings.key)
        if self.alone is None or self.alone.key.step >= row.key.step:
            return row
        if self.first is not None:
            return replace(row, root=False).caused_by(self.first)
        self.first = row.key
        told = (
            f"{row.judgement.reason}; {self.alone.judgement.reason} at token {self.alone.key.step}"
        )
        return replace(row, judgement=replace(row.judgement, reason=told))

    def _note(self, row: Row) -> None:
        if row.key.op != Effect.TRAINING.op:
            return
        if self.settings is None and row.root:
            self.settings = row
        if self.alone is None and row.verdict is Verdict.INCONCLUSIVE:
            self.alone = row


def _is_made_by_a_step(row: Row) -> bool:
    return row.key.slot.kind == "param" and row.judgement.why in _OF_STEPS


def with_effect_rows(rows: Sequence[Row], effects: Sequence[Row], before: Row | None) -> list[Row]:
    """`rows`, with those of effects after all others of their steps, and what fails for which.

    An effect that differs follows from what was wrong before, if anything was: `before` in earlier
    steps. What one side lacks since its forward raised follows from that.
    """
    found = _blaming_exceptions(rows, effects)
    placed: dict[StepName, list[Row]] = {}
    for row in effects:
        placed.setdefault((row.key.model, row.key.step), []).append(row)
    last = {(row.key.model, row.key.step): at for at, row in enumerate(found)}
    merged: list[Row] = []
    root = before
    for at, row in enumerate(found):
        name = row.key.model, row.key.step
        merged.append(row)
        root = row if row.root else root
        if last[name] == at:
            for effect in placed.pop(name, ()):
                merged.append(_as_root(effect, root))
                root = merged[-1] if merged[-1].root else root
    for some in placed.values():  # of steps without any other value
        for effect in some:
            merged.append(_as_root(effect, root))
            root = merged[-1] if merged[-1].root else root
    return merged


def _as_root(effect: Row, before: Row | None) -> Row:
    if not effect.verdict.fails:
        return effect
    return replace(effect, root=True) if before is None else effect.caused_by(before.key)


def _blaming_exceptions(rows: Sequence[Row], effects: Sequence[Row]) -> list[Row]:
    """`rows`, in which what a side lacks after its forward raised is no cause of its own."""
    raised = [
        row for row in effects if row.key.op == Effect.EXCEPTION.op and row.verdict.fails
        and not (row.golden_key and row.target_key)
    ]  # fmt: skip
    if not raised:
        return list(rows)
    first = min(raised, key=lambda row: row.key.step)
    is_ours = first.golden_key is not None  # golden raised: golden lacks what came after
    moved = {
        row.key: first.key for row in rows
        if row.root and row.key.step >= first.key.step
        and (row.golden_key is None) is is_ours and (row.target_key is None) is not is_ours
    }  # fmt: skip
    found = []
    for row in rows:
        if row.root and row.key in moved:
            row = replace(row, root=False, cause=moved[row.key])
        elif row.cause in moved:
            row = row.caused_by(moved[row.cause])
        found.append(row)
    return found
