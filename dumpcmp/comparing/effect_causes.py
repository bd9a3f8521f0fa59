"""Rows of effects among all others: what fails for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from dumpcmp.comparing.side import StepName
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Row, Verdict, Why

_OF_STEPS = (Why.WIRED, Why.LEAF)  # weights that are not what golden's optimizer makes


@dataclass(slots=True)
class _Steered:
    """How training was steered otherwise than golden's, of one model."""

    cause: Key | None  # None: nobody knows if it matters, and the first weight after it is the root
    said: str
    step: int  # the latest in which it was so

    def goes_on_in(self, row: Row) -> bool:
        """Whether a later step's row shows the same settings still."""
        return row.cause == self.cause or row.reason == self.said


@dataclass(slots=True, eq=False)
class Steering:
    """Which weights differ because of how the step before them was steered."""

    models: dict[str, _Steered] = field(default_factory=dict)

    def with_causes(self, rows: Sequence[Row]) -> list[Row]:
        """`rows`, in which one cause is one root, however many weights an optimizer has made."""
        found: list[Row] = []
        moved: dict[Key, Key] = {}
        for row in rows:
            if row.cause in moved:
                row = row.caused_by(moved[row.cause])
            elif row.root and _is_made_by_a_step(row):
                row = self._caused(row)
                if row.cause is not None:
                    moved[row.key] = row.cause
            if _steers(row):
                self._note(row)
            found.append(row)
        return found

    def _caused(self, row: Row) -> Row:
        steered = self.models.get(row.key.model)
        if steered is None or steered.step != row.key.step - (not _is_of_optimizers(row)):
            return row
        if steered.cause is not None:
            return replace(row, root=False).caused_by(steered.cause)
        steered.cause = row.key
        said = f"{row.judgement.reason}; {steered.said} at token {steered.step}"
        return replace(row, judgement=replace(row.judgement, reason=said))

    def _note(self, row: Row) -> None:
        model, step, known = row.key.model, row.key.step, self.models.get(row.key.model)
        is_alone = row.golden_key is None or row.target_key is None
        if row.root:
            self.models[model] = _Steered(row.key, row.reason, step)
        elif row.verdict is (Verdict.INCONCLUSIVE if is_alone else Verdict.SKIPPED):
            goes_on = known is not None and known.step in (step - 1, step)
            cause = known.cause if known is not None and goes_on else None
            self.models[model] = _Steered(cause, row.reason, step)
        elif known is not None and row.verdict.fails and known.goes_on_in(row):
            known.step = step


def _is_made_by_a_step(row: Row) -> bool:
    """Whether both runs have made a weight anew, and the target's is another."""
    keys = (row.golden_key, row.target_key)
    if _is_of_optimizers(row):
        return None not in keys
    both = all(key is not None and key.slot.kind == "param" for key in keys)
    return both and row.judgement.why in _OF_STEPS


def _is_of_optimizers(row: Row) -> bool:
    """Whether it is of what the last steps of an optimizer left behind."""
    return row.key.op in (Effect.OPTIMIZER.op, Effect.STATE.op)


def with_effect_rows(rows: Sequence[Row], effects: Sequence[Row], before: Row | None) -> list[Row]:
    """`rows`, with those of effects after all others of their steps, and what fails for which.

    What steers training comes before what optimizers leave behind at the end of a run. An effect
    that differs follows from what was wrong before, if anything was: `before` in earlier steps.
    What one side lacks since its forward raised follows from that.
    """
    found = _blaming_exceptions(rows, effects)
    placed: dict[StepName, list[Row]] = {}
    for row in effects:
        placed.setdefault((row.key.model, row.key.step), []).append(row)
    last = {(row.key.model, row.key.step): at for at, row in enumerate(found)}
    merged: list[Row] = []
    root = before

    def add(row: Row) -> None:
        nonlocal root
        merged.append(row)
        root = row if row.root else root

    for at, row in enumerate(found):
        own = placed.get((row.key.model, row.key.step), [])
        for effect in [each for each in own if _is_of_optimizers(row) and _steers(each)]:
            own.remove(effect)
            add(_as_root(effect, root))
        add(row)
        while own and last[row.key.model, row.key.step] == at:
            add(_as_root(own.pop(0), root))
    for effect in chain.from_iterable(placed.values()):  # of steps without any other value
        add(_as_root(effect, root))
    return merged


def _steers(row: Row) -> bool:
    """Whether it tells how training was steered."""
    return row.key.op == Effect.TRAINING.op


def _as_root(effect: Row, before: Row | None) -> Row:
    if not effect.verdict.fails:
        return effect
    if before is None or before.key.step > effect.key.step:  # of a model that was compared before
        return replace(effect, root=True)
    return effect.caused_by(before.key)


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
