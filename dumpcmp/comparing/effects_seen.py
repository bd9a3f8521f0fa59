"""The effects of a whole comparison, as it goes through the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.comparing.chosen_numbers import ChosenNumbers
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.effect_causes import Steering, with_effect_rows
from dumpcmp.comparing.effect_facts import records_effects, silent_roots
from dumpcmp.comparing.effect_rows import EffectJudge
from dumpcmp.comparing.end_weights import EndWeights
from dumpcmp.comparing.laying import Job
from dumpcmp.comparing.read_off import reading
from dumpcmp.comparing.rounding_spread import Spread
from dumpcmp.comparing.same_steps import SameStep
from dumpcmp.comparing.side import OpenRun, Side
from dumpcmp.comparing.tree_differences import NumberRule
from dumpcmp.judge.tolerances import FLOAT32_EPS, noise
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.row import Measured, Pair, Row
from dumpcmp.nouns.value import Kind, dtype_named


@dataclass(frozen=True, slots=True)
class Looked:
    """What is known of the steps whose effects are to be judged."""

    golden: Side
    target: Side
    counting: Counting
    is_apart: bool  # the sides differ in something that an op gave out, here or before
    flow: DataFlow
    work: Mapping[Pair, Job]
    measured: Mapping[Pair, Measured]

    def rule(self, rows: Sequence[Row]) -> NumberRule:
        """When two floats of effects are the same: as a scalar of the coarsest dtype that is seen.

        That is float32 at least, since nobody knows in what a number of Python's was computed.
        """
        if not self.is_apart:
            return NumberRule()
        failing = {(row.golden_key, row.target_key) for row in rows if row.verdict.fails}
        sides = self.golden.listing.values, self.target.listing.values
        names = {records[0].dtype for values in sides for records in values.values()}
        known = [dtype_named(name) for name in names]
        eps = max([FLOAT32_EPS, *(one.eps for one in known if one.kind is Kind.FLOAT)])
        return NumberRule(noise(eps), reading(self.flow, self.work, self.measured, failing))


@dataclass(slots=True, eq=False)
class EffectsSeen:
    """What was found of effects in all steps so far."""

    missing: dict[str, None] = field(default_factory=dict)  # results that were not recorded
    is_flipped: bool = False  # a choice in an earlier step was another
    steering: Steering = field(default_factory=Steering)
    weights: EndWeights = field(default_factory=EndWeights)
    spread: Spread = field(default_factory=Spread)

    def of_same_step(self, step: SameStep, counting: Counting) -> list[Row]:
        """The rows of effects of a step that both runs have bit for bit."""
        place = step.rows.model, step.rows.step
        golden, target = (_side_of(run, place) for run in (step.golden, step.target))
        self._note_silent(golden, target)
        self.weights.remember(step.weights)
        return list(EffectJudge(golden, target, counting, NumberRule()).rows())

    def judged(self, rows: Sequence[Row], is_apart: bool) -> list[Row]:
        """`rows`, in which tensors of effects are judged in the light of all others so far."""
        self.spread.see(rows)
        return [self.spread.judged(row, is_apart) for row in rows]

    def with_rows(
        self, rows: Sequence[Row], looked: Looked, before: Row | None, latest: Row | None
    ) -> tuple[list[Row], Row | None]:
        """`rows` of some steps with those of their effects, and the latest root among them.

        `before` is the latest root of earlier steps, and `latest` that of `rows`.
        """
        self._note_silent(looked.golden, looked.target)
        rows = self.weights.told(rows)
        chosen = ChosenNumbers(rows, looked.work, self.is_flipped)
        rule = looked.rule(rows)
        judge = EffectJudge(
            looked.golden, looked.target, looked.counting, rule, self.spread, chosen
        )
        effects = list(judge.rows())
        self.is_flipped = chosen.is_any
        found = with_effect_rows(rows, effects, before) if effects else rows
        found = self.steering.with_causes(found)
        roots = [row for row in found if row.root]
        same = [row for row in roots if latest is not None and row.key == latest.key]
        latest_of = same or roots
        return found, latest_of[-1] if latest_of else before

    def _note_silent(self, golden: Side, target: Side) -> None:
        for side, who in ((golden, "golden"), (target, "my side")):
            self.missing |= dict.fromkeys(silent_roots(side, who))


def _side_of(run: OpenRun, place: tuple[str, int]) -> Side:
    """The effects of one step, and of its ops the root alone, as far as those do not tell."""
    archive = run.archive
    if records_effects(archive):
        return Side(archive, Listing({}), run.facts, effects={place: archive.effects_at(*place)})
    values = {key: archive.shards(key) for key in archive.keys_of(*place, ROOT)}
    calls = {site: c for site, c in archive.calls_at(*place).items() if site.op == ROOT}
    return Side(archive, Listing(values, calls), run.facts)
