"""Finds what a weight of mine is made of, by its name or else by its values, and measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dumpcmp.weights.casting import Cast
from dumpcmp.weights.checkpoint_files import Checkpoint, Weight
from dumpcmp.weights.matrices import Matrix, flat_shape, matrices, portion_matrix, scale_of
from dumpcmp.weights.measured_weights import WeightMeasure, measure
from dumpcmp.weights.row_layouts import RowLayout, Stacked, WeightFit, agreeing, best_fit
from dumpcmp.weights.weight_lookup import WeightLookup
from dumpcmp.weights.weight_names import Composition, WeightNames, WeightPart


@dataclass(frozen=True, slots=True)
class MatchedWeight:
    """A weight of one rank beside one composition: its fits, sheet by sheet, and their measures."""

    composition: Composition
    fits: tuple[WeightFit, ...]
    measures: tuple[WeightMeasure, ...]

    @property
    def matches(self) -> bool:
        """Whether every element is golden's."""
        return all(each.matches for each in self.measures)

    @property
    def closeness(self) -> float:
        """How much of it agrees, to choose among compositions of which none matches."""
        right = sum(each.count - each.num_wrong for each in self.measures)
        cosines = [each.cosine for each in self.measures if each.cosine == each.cosine]
        return right / max(1, sum(each.count for each in self.measures)) + max(cosines, default=0.0)


class WeightMatcher:
    """The weights of both sides, and which scales were used with codes so far."""

    def __init__(self, golden: Checkpoint, mine: Checkpoint) -> None:
        self.golden, self.mine = golden, mine
        self.weights = {name: of_lowest(ranks) for name, ranks in golden.weights.items()}
        self.names = WeightNames(self.weights)
        self.lookup = WeightLookup(self.weights)
        self.used: set[str] = set()  # weights of golden that some of mine are made of
        self.found_by_values: list[str] = []
        self.golden_scales: set[str] = set()  # used with codes
        self.my_scales: set[str] = set()

    def rows_of(self, name: str) -> int:
        """How many rows a weight of mine has; 0 if there is none of this name."""
        ranks = self.mine.weights.get(name)
        return flat_shape(of_lowest(ranks).shape)[0] if ranks else 0

    def match(self, weight: Weight) -> MatchedWeight | None:
        """What a weight of mine is made of: by its name, or else by its values."""
        if found := self._best(weight, self._by_name(weight)):
            return found
        if found := self._best(weight, self._by_values(weight)):
            self.found_by_values.append(weight.name)
        return found

    def _best(self, weight: Weight, candidates: Iterator[Composition]) -> MatchedWeight | None:
        """The first candidate that matches, or the one that comes nearest."""
        best: MatchedWeight | None = None
        for composition in candidates:
            for is_scaled in self._scalings(weight, composition):
                found = self._measured(weight, composition, is_scaled)
                if found is not None and (best is None or found.closeness > best.closeness):
                    best = found
                if best is not None and best.matches:
                    return best
        return best

    def _by_name(self, weight: Weight) -> Iterator[Composition]:
        for composition in self.names.compositions(weight.name, self.rows_of):
            if any(self.weights[p.name].problem for group in composition for p in group):
                yield composition
                return
            yield composition
            yield from self._by_experts(weight, composition)

    def _by_values(self, weight: Weight) -> Iterator[Composition]:
        if self.names.find(weight.name):
            return
        sheet = matrices(weight, scale_of(weight, self.mine.weights))[0]
        known = self.lookup.same_as(sheet)
        for name in sorted(known, key=lambda name: name in self.used):
            yield ((WeightPart(name),),)
        if merged := self.lookup.composition_of(sheet):
            yield merged

    def _by_experts(self, weight: Weight, composition: Composition) -> Iterator[Composition]:
        """The same expert by expert, where both sides have stacks that do not lie alike."""
        if len(composition) > 1 or len(weight.shape) < 3:
            return
        names = {portion.name for portion in composition[0]}
        shapes = {self.weights[name].shape for name in names}
        if len(shapes) == 1 and len(*shapes) == 3 and shapes != {weight.shape}:
            (shape,) = shapes
            yield tuple(
                tuple(replace(portion, expert=expert) for portion in composition[0])
                for expert in range(shape[0])
            )

    def _scalings(self, weight: Weight, composition: Composition) -> Iterator[bool]:
        """Whether codes are held against each other as they are, and whether as numbers."""
        has_scale = scale_of(weight, self.mine.weights) is not None
        scales = [scale_of(self.weights[portion.name], self.golden.weights)
                  for group in composition for portion in group]  # fmt: skip
        if has_scale == any(scales):
            yield False
        if has_scale or any(scales):
            yield True

    def _measured(
        self, weight: Weight, composition: Composition, is_scaled: bool
    ) -> MatchedWeight | None:
        if any(self.weights[p.name].problem for group in composition for p in group):
            return MatchedWeight(composition, (), ())
        per_expert = len(composition) > 1 or composition[0][0].expert is not None
        scale = scale_of(weight, self.mine.weights) if is_scaled else None
        sheets = matrices(weight, scale, per_expert=len(composition) > 1)
        groups = [self.parts(group, is_scaled, per_expert) for group in composition]
        fits = self._fits(weight, sheets, groups)
        if not fits:
            return None
        if is_scaled:
            self._use_scales(weight, composition)
        return MatchedWeight(composition, fits, tuple(map(measure, fits)))

    def _use_scales(self, weight: Weight, composition: Composition) -> None:
        if scale := scale_of(weight, self.mine.weights):
            self.my_scales.add(scale.name)
        for group in composition:
            for portion in group:
                if scale := scale_of(self.weights[portion.name], self.golden.weights):
                    self.golden_scales.add(scale.name)

    def parts(self, group: Sequence[WeightPart], is_scaled: bool, per_expert: bool) -> list[Matrix]:
        found = []
        for portion in group:
            weight = self.weights[portion.name]
            scale = scale_of(weight, self.golden.weights) if is_scaled else None
            sheets = matrices(weight, scale, per_expert=per_expert and portion.expert is not None)
            found.append(portion_matrix(portion, sheets))
        return found

    def _fits(
        self, weight: Weight, sheets: Sequence[Matrix], groups: Sequence[Sequence[Matrix]]
    ) -> tuple[WeightFit, ...]:
        """A fit for each sheet; that of the first says how all lie."""
        if not sheets or len(groups) % len(sheets):
            return ()
        pieces = len(groups) // len(sheets)
        start = weight.rank % pieces * len(sheets)
        own = groups[start : start + len(sheets)]
        first = _plain_fit(sheets[0], own[0]) or best_fit(
            own[0], sheets[0], weight.rank, self.mine.world_size
        )
        if first is None:
            return ()
        return (first, *(_alike(first, s, g) for s, g in zip(sheets[1:], own[1:], strict=True)))

    def compositions_of_shape(self, weight: Weight) -> Iterator[tuple[str, Composition]]:
        """What other weights of the same shape are made of, where they are of several parts."""
        for name, ranks in self.mine.weights.items():
            if name != weight.name and of_lowest(ranks).shape == weight.shape:
                composition = next(self.names.compositions(name, self.rows_of), None)
                if composition and len(composition) == 1:
                    yield name, composition


def of_lowest(ranks: Mapping[int, Weight]) -> Weight:
    """What the lowest rank has of a weight."""
    return ranks[min(ranks)]


def _plain_fit(mine: Matrix, parts: Sequence[Matrix]) -> WeightFit | None:
    """Row beside row, where there is one part of the same shape, and some rows agree."""
    part = parts[0]
    if len(parts) > 1 or part.bits.shape != mine.bits.shape:
        return None
    fit = WeightFit(mine, Stacked(parts), RowLayout(np.arange(mine.rows)), Cast(mine.torch_dtype))
    probed = np.unique(np.linspace(0, max(0, mine.rows - 1), min(mine.rows, 16)).astype(np.int64))
    return fit if agreeing(fit, probed) == 1 else None


def _alike(first: WeightFit, mine: Matrix, parts: Sequence[Matrix]) -> WeightFit:
    """The fit of another sheet that lies as the first does."""
    golden, layout = Stacked(parts), first.layout
    if layout.by_columns:
        golden = golden.columns_of(layout.shard, layout.shards)
    return replace(first, mine=mine.transposed if layout.transposed else mine, golden=golden)
