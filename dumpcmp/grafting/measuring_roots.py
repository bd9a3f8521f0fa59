"""How much of the effects' difference goes away with each root put right, and what is left."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.grafting.evaluation import Evaluation, Faults, distance, size_of, together
from dumpcmp.grafting.exact_sides import ExactSides
from dumpcmp.grafting.suspects import RootKind, Suspect, Suspects, all_suspects, by_layer
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.program import ValueId
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.shadow import Shadow
from dumpcmp.shadows.shown_effects import EffectPair, paired_effects
from dumpcmp.shadows.slices import Marginals

EXACT = 1e-9  # of golden's size: programs that are the same are as near in float64
_LEAST = 1e-3  # of the largest effect of its kind
_MOST = 256  # suspects that are measured one by one
_BETTER = 0.7  # times what was left: a place that was put right and was not wrong
_ROUNDING = 8.0  # times what one run with rounded results is off: what rounding explains


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRoot:
    """A root, and what the effects' difference becomes without it and with it alone."""

    suspect: Suspect
    without: float
    alone: float


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredStep:
    """The roots of a step, and the effects' difference with all of them and with none."""

    roots: Sequence[MeasuredRoot]
    total: float  # of all effects together, as they ran, relative to golden's
    left: float  # in exact arithmetic, with all roots put right
    left_at: str  # the first value that is golden's no more, if something is left
    recorded: float  # between the recorded effects, beyond what exact arithmetic tells
    rounding: float  # what rounding of each result makes
    num_effects: int
    num_idle: int  # places that differ and change no effect
    remarks: Sequence[str] = ()


@dataclass(eq=False)
class GraftedEffects:
    """Runs both programs of a step with some suspects put right."""

    suspects: Suspects
    effects: Sequence[EffectPair] = ()
    remarks: list[str] = field(default_factory=list)
    _least: dict[bool, float] = field(default_factory=dict)  # of gradients, and of others
    _alone: dict[tuple[int, frozenset[int]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = paired_effects(self.sides.golden, self.sides.target).pairs
        self.effects = [pair for pair in pairs if _has_numbers(pair)]
        if others := [pair for pair in self.effects if not self._is_whole_or_part(pair)]:
            names = ", ".join(dict.fromkeys(pair[1].effect.name for pair in others))
            self.remarks.append(f"{names}: neither golden's nor a part of it, so not measured")
            self.effects = [pair for pair in self.effects if pair not in others]
        for its, _ in self.effects:
            is_gradient = its.effect.value.key.slot.is_gradient
            size = _LEAST * size_of(its.quantity.tensor)
            self._least[is_gradient] = max(size, self._least.get(is_gradient, 0.0))
        if len(self.effects) < len(pairs):
            self.remarks.append("effects without recorded numbers were left out")

    @property
    def sides(self) -> ExactSides:
        return self.suspects.sides

    def run(
        self, wrong: Collection[Suspect], right: Collection[Suspect],
        dtypes: Mapping[int, torch.dtype] | None = None,
    ) -> Evaluation:  # fmt: skip
        """Both programs with the suspects `wrong` as they were, and those that are `right` not."""
        unseen = {id_ for each in (*wrong, *right) for id_ in each.offsets
                  if each.kind is RootKind.UNSEEN}  # fmt: skip
        offsets = {id_: off for each in wrong for id_, off in each.offsets.items()}
        replaced = frozenset(id_ for each in right for id_ in each.replaced)
        faults = Faults(replaced, frozenset(unseen), offsets, self.suspects.choices)
        return Evaluation(self.sides, faults, dtypes or {})

    def apart(self, evaluation: Evaluation) -> float:
        """How far all effects are off golden's, together."""
        return together([self._distance(evaluation, pair) for pair in self.effects])

    def alone(self, one: Suspect, every: Sequence[Suspect]) -> float:
        """The same with `one` as it was, and all others put right."""
        spot = id(one), frozenset(map(id, every))
        if spot not in self._alone:
            others = [other for other in every if other is not one]
            self._alone[spot] = self.apart(self.run([one], others))
        return self._alone[spot]

    def _distance(self, evaluation: Evaluation, pair: EffectPair) -> float:
        golden, target = (each.quantity for each in pair)
        try:
            its, mine = evaluation.golden(golden), evaluation.target(target)
        except DumpcmpError as error:
            self.remarks.append(f"{pair[1].effect.name}: {error.message}")
            return math.inf
        if its.shape != mine.shape and its.numel() != mine.numel():
            its = self._part(its, target)
        its = its.reshape(mine.shape) if its.numel() == mine.numel() else its
        return distance(its, mine, self.least(pair))

    def _is_whole_or_part(self, pair: EffectPair) -> bool:
        golden, target = (each.quantity.tensor for each in pair)
        return (
            golden.numel() == target.numel() or self._part(golden, pair[1].quantity) is not golden
        )

    def least(self, pair: EffectPair) -> float:
        """The size below which an effect is nothing but what float arithmetic leaves of zero."""
        return self._least[pair[0].effect.value.key.slot.is_gradient]

    def _part(self, whole: Tensor, target: Quantity) -> Tensor:
        """What a rank, or a loop over tokens, has of `whole`."""
        place = next(Marginals(whole).places_in_order(target), None)
        return whole if place is None else whole[(slice(None),) * place[0] + (list(place[1]),)]


def measured(suspects: Suspects, is_by_layer: bool = False) -> MeasuredStep:
    """Measure the suspects of a step, and drop those that no effect depends on."""
    grafts = GraftedEffects(suspects)
    every = list(all_suspects(suspects))
    every = by_layer(every) if is_by_layer else every
    as_run = grafts.run(every, ())
    total = grafts.apart(as_run)
    kept = _that_matter(grafts, every)
    right = grafts.run((), kept)
    left = grafts.apart(right)
    roots = []
    for each in kept[:_MOST]:
        others = [other for other in kept if other is not each]
        roots.append(
            MeasuredRoot(
                each, grafts.apart(grafts.run(others, [each])), grafts.alone(each, kept)
            )
        )  # fmt: skip
    told = [*suspects.remarks, *grafts.remarks]
    if len(kept) > _MOST:
        told.append(f"the first {_MOST} of {len(kept)} roots were measured")
    return MeasuredStep(
        roots, total, left, _left_at(grafts, right) if left > EXACT else "",
        _recorded(grafts, grafts.run(kept, ())), _rounding(grafts, kept),
        len(grafts.effects), len(every) - len(kept), list(dict.fromkeys(told)),
    )  # fmt: skip


def _that_matter(grafts: GraftedEffects, every: Sequence[Suspect]) -> list[Suspect]:
    """The suspects without which, all others put right, an effect would be another.

    A place that only looks wrong, such as a value that does not match after all, leaves more of a
    difference when it is "put right" than when it is left alone: the worst of these goes first.
    """
    kept = list(every)
    left = grafts.apart(grafts.run((), kept))
    while left > EXACT and kept:
        best, at = min((grafts.alone(each, kept), at) for at, each in enumerate(kept))
        if not best < _BETTER * left:
            break
        left = best
        del kept[at]
    for each in reversed(list(kept)):  # of two that explain the same, the earlier stays
        if abs(grafts.alone(each, kept) - left) <= EXACT:
            kept.remove(each)
    return kept


def _left_at(grafts: GraftedEffects, right: Evaluation) -> str:
    """The first value of the target that is not golden's, though all roots are put right."""
    sides = grafts.sides
    for ours, theirs in sides.values:
        try:
            its = right.golden(sides.golden.quantity(ours))
            mine = right.target(sides.target.quantity(theirs))
        except DumpcmpError:
            continue
        if distance(its.reshape(mine.shape), mine) > EXACT:
            return str(theirs)
    return ""


def _recorded(grafts: GraftedEffects, as_run: Evaluation) -> float:
    """What the recorded effects differ in more than the runs in float64 do."""
    found = []
    for its, mine in grafts.effects:
        golden, target = as_run.golden(its.quantity), as_run.target(mine.quantity)
        off_golden = _load(grafts.sides.golden, its.effect.value).reshape(golden.shape) - golden
        off_target = _load(grafts.sides.target, mine.effect.value).reshape(target.shape) - target
        size = max(size_of(golden), grafts.least((its, mine))) or 1.0
        parts = (off_golden, off_target)
        norms = [float(torch.linalg.vector_norm(each[each.isfinite()])) for each in parts]
        found.append(math.hypot(*norms) / size)
    return together(found)


def _rounding(grafts: GraftedEffects, kept: Sequence[Suspect]) -> float:
    """How far effects are off if each result is rounded to the dtype that it was recorded in."""
    dtypes: dict[int, torch.dtype] = {}
    for shadow in (grafts.sides.golden, grafts.sides.target):
        for value in shadow.program.producers:
            record, quantity = shadow.record(value), shadow.quantities.get(value)
            if quantity is not None and quantity.application is not None:
                dtype = getattr(torch, record.dtype, None)
                if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
                    dtypes[id(quantity)] = dtype
    rounded = grafts.run(kept, (), dtypes)
    plain = grafts.run(kept, ())
    found = []
    for its, mine in grafts.effects:
        norms = [
            float(torch.linalg.vector_norm((a - b)[(a - b).isfinite()]))
            for a, b in (
                (rounded.golden(its.quantity), plain.golden(its.quantity)),
                (rounded.target(mine.quantity), plain.target(mine.quantity)),
            )
        ]
        golden = plain.golden(its.quantity)
        size = max(size_of(golden), grafts.least((its, mine))) or 1.0
        found.append(math.hypot(*norms) / size)
    return _ROUNDING * together(found)


def _load(shadow: Shadow, value: ValueId) -> Tensor:
    return shadow.loader(value)()


def _has_numbers(pair: EffectPair) -> bool:
    try:
        return all(each.quantity.tensor is not None for each in pair)
    except DumpcmpError:
        return False
