"""How far rounding spreads in two runs, as values that pass show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dumpcmp.comparing.tree_differences import LeafDifference
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why

_TIMES = 4.0  # what is made of several values that pass may be farther apart than each of them
_MADE = frozenset((Effect.RESULT.op, Effect.YIELDED.op, Effect.INPUTS.op, Effect.OPTIMIZER.op))


@dataclass(slots=True, eq=False)
class Spread:
    """The largest rel_l2 of values that pass, in all steps so far."""

    values: float = 0.0  # that ops gave out
    gradients: float | None = None  # None: none is recorded

    def see(self, rows: Sequence[Row]) -> None:
        """Take in the rows of some steps."""
        for row in rows:
            if row.verdict is not Verdict.PASS or row.metrics is None or row.key.op.is_effect:
                continue
            if row.touched is not None or row.judgement.why is Why.ILL:
                continue
            error = row.metrics.rel_l2 if row.metrics.rel_l2 > 0 else 0.0
            if row.key.slot.is_gradient:
                self.gradients = max(self.gradients or 0.0, error)
            elif row.key.slot.is_output:
                self.values = max(self.values, error)

    def norms(self, limit: float) -> float:
        """How far apart two norms of gradients may be, where a number may be by `limit`."""
        return max(limit, _TIMES * (self.gradients or self.values)) if limit else 0.0

    def may_be_rounding(self, difference: LeafDifference) -> bool:
        """Whether two norms of gradients differ by what gradients might, if they were recorded."""
        ours, theirs = difference.golden, difference.target
        if self.gradients is not None or ours is None or theirs is None:
            return False
        if not ours.path.endswith(".total_norm") or not isinstance(ours.value, float):
            return False
        apart = abs(theirs.value - ours.value) if isinstance(theirs.value, float) else float("inf")
        return apart <= SAME_VALUE * abs(ours.value)

    def judged(self, row: Row, is_apart: bool) -> Row:
        """`row`, if it is of a tensor that an effect has of its own, in the light of all others.

        No op of the run is seen to compute it, so that none can be run again.
        """
        metrics = row.metrics
        if row.key.op not in _MADE or row.verdict is not Verdict.FAIL or not is_apart:
            return row
        if metrics is None or row.judgement.why is not Why.PLAIN or not metrics.nonfinite_agree:
            return row
        known = self.gradients if row.key.op == Effect.OPTIMIZER.op else self.values
        limit = _TIMES * (known or self.values)
        if metrics.rel_l2 <= limit:
            said = f"rel_l2 {metrics.rel_l2:.3g} is no more than rounding makes of other values"
            return replace(row, judgement=_changed(row, Verdict.PASS, said, limit))
        if metrics.rel_l2 <= SAME_VALUE:
            said = f"{row.judgement.reason}; no op is seen to compute it, so none was run again"
            return replace(row, judgement=_changed(row, Verdict.INCONCLUSIVE, said, limit))
        return row


def _changed(row: Row, verdict: Verdict, said: str, limit: float) -> Judgement:
    why = Why.EFFECT if verdict is Verdict.INCONCLUSIVE else Why.PLAIN
    return replace(row.judgement, verdict=verdict, reason=said, limit=limit, why=why)
