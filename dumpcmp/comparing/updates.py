"""What weights tell of gradients before them: terms that were added up gave golden's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dumpcmp.align.listing import Listing
from dumpcmp.judge.tolerances import SAME_TIMES
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Measured, OpenSum, Pair


def shown_sums(
    pairs: Sequence[Pair], measured: Mapping[Pair, Measured], golden: Listing
) -> dict[Pair, Pair]:
    """Gradients of which each rank has a term and nobody saw the sum, by what shows that sum.

    A weight that was updated by such a gradient shows it. Where the weights stay as they are, the
    next step's gradient is added to this one, and tells. Where no step comes after, and the terms
    are added up as in the step before, the weight after that one does.
    """
    terms = {p.target: one.terms for p, one in measured.items() if p.target and one.terms}
    if not terms:
        return {}
    kept = _Weights(
        {p.target: p for p in pairs if p.golden and p.target and p.target.slot.is_weight}, golden
    )
    gradients = {p.target: p for p in pairs if p.both and p.key.slot.is_parameter_gradient}
    return {
        pair: found
        for pair, one in measured.items()
        if pair.target and one.terms
        if (found := _telling(pair.target, kept, terms, gradients))
    }


def _telling(
    gradient: Key,
    weights: _Weights,
    terms: Mapping[Key, OpenSum],
    gradients: Mapping[Key | None, Pair],
) -> Pair | None:
    """The value that shows what became of a gradient."""
    before, after = (replace(gradient, step=gradient.step + by) for by in (-1, 1))
    if updated := weights.updated(after):
        return updated
    if after in gradients:  # of the same weights: it was added to this one
        return gradients[after]
    is_alike = before in terms and _are_alike(terms[before], terms[gradient])
    return weights.updated(gradient) if is_alike else None


def _are_alike(one: OpenSum, other: OpenSum) -> bool:
    """Whether the same collective makes the same of both, but for rounding."""
    same = math.isclose(one.times, other.times, rel_tol=SAME_TIMES)
    return bool(one.by) and one.by == other.by and same


@dataclass(frozen=True)
class _Weights:
    """The weights of all steps in which they are other ones than before, by the target's names."""

    pairs: Mapping[Key | None, Pair]
    golden: Listing

    def updated(self, gradient: Key) -> Pair | None:
        """The weight that a gradient is of, if golden's is another one since this step."""
        pair = self._at(gradient)
        earlier = (self._at(replace(gradient, step=step)) for step in range(gradient.step)[::-1])
        last = next((found for found in earlier if found), None)
        is_same = pair and last and self._digest(pair) == self._digest(last)
        return None if is_same else pair

    def _at(self, gradient: Key) -> Pair | None:
        return self.pairs.get(replace(gradient, slot=gradient.slot.value))

    def _digest(self, pair: Pair) -> str:
        return self.golden.record(pair.golden).digest if pair.golden else ""
