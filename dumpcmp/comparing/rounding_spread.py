"""How far rounding spreads in two runs, as values that pass show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dumpcmp.comparing.staleness import WeightName
from dumpcmp.comparing.tree_differences import LeafDifference
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.effects import Effect, parameters_kept
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why

_FAR = 64.0  # times what gradients are apart: a sum of them is not, unless it all but cancels
_TIMES = 4.0  # what is made of several values that pass may be farther apart than each of them
_MADE = frozenset((Effect.RESULT.op, Effect.YIELDED.op, Effect.INPUTS.op, Effect.OPTIMIZER.op))


@dataclass(slots=True, eq=False)
class Spread:
    """The largest rel_l2 of values that pass, in all steps so far."""

    values: float = 0.0  # that ops gave out
    gradients: float | None = None  # None: none is recorded
    _own: dict[WeightName, float] = field(default_factory=dict)  # of the gradients of each weight

    def see(self, rows: Sequence[Row]) -> None:
        """Take in the rows of some steps."""
        for row in rows:
            if row.verdict is not Verdict.PASS or row.metrics is None or row.key.op.is_effect:
                continue
            if row.judgement.why is Why.ILL:
                continue
            error = row.metrics.rel_l2 if row.metrics.rel_l2 > 0 else 0.0
            if row.key.slot.is_gradient:
                self.gradients = max(self.gradients or 0.0, error)
                if row.key.slot.is_parameter_gradient:
                    name = row.key.model, row.key.op, row.key.slot.value
                    self._own[name] = max(self._own.get(name, 0.0), error)
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
        if row.key.op not in _MADE or not is_apart or (row.replay and row.replay.is_known):
            return row
        if metrics is None or row.judgement.why is not Why.PLAIN or not metrics.nonfinite_agree:
            return row
        is_kept = row.key.op == Effect.OPTIMIZER.op
        if row.verdict is not Verdict.FAIL and not (is_kept and _is_open(row)):
            return row
        known = self._of_own(row) if is_kept else None
        error = known if known is not None else self.gradients if is_kept else self.values
        limit = _TIMES * (error or self.values)
        if metrics.rel_l2 <= limit <= SAME_VALUE:
            said = f"rel_l2 {metrics.rel_l2:.3g} is no more than rounding makes of other values"
            return replace(row, judgement=_changed(row, Verdict.PASS, said, limit))
        if known is not None and metrics.rel_l2 > max(SAME_VALUE, _FAR * known):
            said = f"rel_l2 {metrics.rel_l2:.3g}, where its gradients are {known:.3g} apart"
            return replace(row, judgement=_changed(row, Verdict.FAIL, said, limit))
        if metrics.rel_l2 <= SAME_VALUE or known is not None:
            said = f"{row.judgement.reason}; no op is seen to compute it, so none was run again"
            said = row.judgement.reason if _is_open(row) else said
            return replace(row, judgement=_changed(row, Verdict.INCONCLUSIVE, said, limit))
        return row

    def _of_own(self, row: Row) -> float | None:
        """How far apart the gradients are at most of which an optimizer made what it keeps."""
        names = ((row.key.model, op, slot) for op, slot in parameters_kept(row.key))
        return next((self._own[name] for name in names if name in self._own), None)


def _is_open(row: Row) -> bool:
    return row.verdict is Verdict.INCONCLUSIVE


def _changed(row: Row, verdict: Verdict, said: str, limit: float) -> Judgement:
    why = Why.EFFECT if verdict is Verdict.INCONCLUSIVE else Why.PLAIN
    return replace(row.judgement, verdict=verdict, reason=said, limit=limit, why=why)
