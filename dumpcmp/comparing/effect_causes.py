"""Rows of effects among all others: what fails for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dumpcmp.comparing.side import StepName
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.row import Row


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
