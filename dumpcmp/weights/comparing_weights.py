"""Holds the weights that a program has loaded against those of its checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.importing.foreign import in_natural_order
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.spoken import counted, spans
from dumpcmp.weights.casting import Cast, matching
from dumpcmp.weights.checkpoint_files import Checkpoint, Weight, opened_weights
from dumpcmp.weights.matrices import Matrix, flat_shape, matrices, portion_matrix, scale_of
from dumpcmp.weights.measured_weights import WeightMeasure, blocks, measure
from dumpcmp.weights.row_layouts import PADDING, RowLayout, Stacked, WeightFit, agreeing, best_fit
from dumpcmp.weights.weight_faults import WeightFault, fault_of
from dumpcmp.weights.weight_lookup import WeightLookup
from dumpcmp.weights.weight_names import Composition, WeightNames, WeightPart, plain_name
from dumpcmp.weights.weight_rows import ALLOWED, WeightReport, WeightRow, WeightVerdict

_OF_ACTIVATIONS = re.compile(r".*[._](?:input|output|activation|act|q|k|v|kv)_scale(?:_inv)?")


def compare_weights(
    golden: str | Path,
    mine: str | Path,
    *,
    older: str | Path | None = None,
    step: int | None = None,
    allow: Collection[str] = (),
) -> WeightReport:
    """Say of each weight of `mine` whether it is the checkpoint's, and which are missing.

        dumpcmp.compare_weights("checkpoints/step_200", "d2", older="checkpoints/step_100")

    Each is a Hugging Face directory, a file, or an archive, whose weights are those of the last
    step, or up to `step`. `allow` names verdicts that are meant, such as ``"transposed"``.
    """
    if unknown := sorted(set(allow) - set(ALLOWED)):
        raise SelectionError(
            f"{unknown[0]!r} is no difference that can be allowed",
            hint=f"known: {', '.join(ALLOWED)}",
        )
    with ExitStack() as stack:
        sides = [stack.enter_context(opened_weights(side, step)) for side in (golden, mine)]
        before = stack.enter_context(opened_weights(older, step)) if older is not None else None
        comparison = _Comparison(sides[0], sides[1], before)
        rows = [
            replace(row, is_meant=row.is_meant or row.verdict in allow) for row in comparison.rows()
        ]
        remarks = (*sides[0].remarks, *sides[1].remarks, *comparison.remarks)
    return WeightReport(rows, remarks)


@dataclass(slots=True)
class _Covered:
    """Which rows of a weight of golden are in mine, and which equal pieces of its columns."""

    rows: NDArray[np.bool_]
    columns: dict[int, set[int]]

    @property
    def missing(self) -> str:
        """What is in no weight of mine."""
        if not self.rows.all():
            absent = spans(map(int, np.flatnonzero(~self.rows)), 4)
            return f"rows {absent} of {self.rows.size} are not in mine"
        for of, numbers in self.columns.items():
            if len(numbers) < of:
                absent = spans(set(range(of)) - numbers, 4)
                return f"of {of} equal parts of its columns, mine lacks {absent}"
        return ""


@dataclass(frozen=True, slots=True)
class _Beside:
    """A weight of one rank beside one composition: its fits, sheet by sheet, and their measures."""

    composition: Composition
    fits: tuple[WeightFit, ...]
    measures: tuple[WeightMeasure, ...]

    @property
    def matches(self) -> bool:
        return all(each.matches for each in self.measures)

    @property
    def closeness(self) -> float:
        """How much of it agrees, to choose among compositions of which none matches."""
        right = sum(each.count - each.num_wrong for each in self.measures)
        cosines = [each.cosine for each in self.measures if each.cosine == each.cosine]
        return right / max(1, sum(each.count for each in self.measures)) + max(cosines, default=0.0)


class _Comparison:
    """Two checkpoints, and what was found of them so far."""

    def __init__(self, golden: Checkpoint, mine: Checkpoint, older: Checkpoint | None) -> None:
        self._golden, self._mine, self._older = golden, mine, older
        self._weights = {name: _of_lowest(ranks) for name, ranks in golden.weights.items()}
        self._names = WeightNames(self._weights)
        self._older_names = WeightNames(older.weights) if older else None
        self._lookup = WeightLookup(self._weights)
        self._covered: dict[str, _Covered] = {}
        self._scales: tuple[set[str], set[str]] = (set(), set())  # used with codes, of either side
        self._by_shape: dict[tuple[int, ...], list[tuple[str, Composition]]] = defaultdict(list)
        self._pieces: dict[str, dict[int, int]] = defaultdict(dict)  # which one each rank has
        self._remarks: list[str] = []

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(self._remarks)

    def rows(self) -> Iterator[WeightRow]:
        """A row for each weight of mine, and then for what is golden's alone."""
        scales = self._scale_names(self._mine)
        names = sorted(self._mine.weights, key=in_natural_order)
        buffers, activations = [], []
        for name in [*(n for n in names if n not in scales), *sorted(scales)]:
            if name in self._scales[1]:
                continue
            row = self._row(name)
            if row.verdict is WeightVerdict.UNEXPECTED and not row.golden:
                if _of_lowest(self._mine.weights[name]).is_buffer:
                    buffers.append(name)
                    continue
                if _OF_ACTIVATIONS.fullmatch(name):
                    activations.append(name)
                    continue
            yield row
        yield from self._absent()
        self._remark(buffers, "buffer", "of mine", "is not in golden", "are not in golden")
        self._remark(activations, "scale of activations", "", "has nothing to be held against",
                     "have nothing to be held against", "scales of activations")  # fmt: skip

    def _remark(
        self, names: Sequence[str], one: str, of: str, does: str, do: str, several: str = ""
    ) -> None:
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            verb = does if len(names) == 1 else do
            what = " ".join(filter(None, [counted(len(names), one, several), of]))
            self._remarks.append(f"{what} {verb}: {shown}")

    def _scale_names(self, side: Checkpoint) -> set[str]:
        found = (
            scale_of(weight, side.weights)
            for ranks in side.weights.values()
            for weight in ranks.values()
        )
        return {scale.name for scale in found if scale is not None}

    def _row(self, name: str) -> WeightRow:
        """The worst of what the ranks have."""
        ranks = self._mine.weights[name]
        rows = [self._of_rank(weight) for weight in ranks.values()]
        worst = max(rows, key=lambda row: row.severity)
        if told := _out_of_order(self._pieces.pop(name, {})):
            return replace(worst, verdict=WeightVerdict.PERMUTED, detail=told, is_meant=False)
        if len(rows) > 1 and worst.fails:
            at = [rank for rank, row in zip(ranks, rows, strict=True) if row.fails]
            worst = replace(worst, detail=f"{worst.detail} (rank {spans(at, 4)})")
        return worst

    def _of_rank(self, weight: Weight) -> WeightRow:
        row = WeightRow(weight.name, WeightVerdict.UNREAD, weight.problem, (), weight.dtype, "",
                        weight.shape)  # fmt: skip
        if weight.problem:
            composition = next(self._names.compositions(weight.name, self._rows_of), ())
            for part in (part for group in composition for part in group):
                self._cover_whole(part.name)
            return row
        judged = self._judged(weight)
        if judged is None:
            return self._without_golden(row)
        names = tuple(dict.fromkeys(p.name for group in judged.composition for p in group))
        if lost := [self._weights[name] for name in names if self._weights[name].problem]:
            return replace(row, detail=f"golden's {lost[0].name}: {lost[0].problem}", golden=names)
        self._cover(judged)
        if judged.fits[0].layout.shards > 1:
            self._pieces[weight.name][weight.rank] = judged.fits[0].layout.shard
        self._by_shape[weight.shape].append((weight.name, judged.composition))
        return _told(row, judged, names, self._fault(weight, judged))

    def _without_golden(self, row: WeightRow) -> WeightRow:
        named = self._names.find(row.name)
        if named is None:
            told = "golden has no weight of this name, nor one with these values"
            return replace(row, verdict=WeightVerdict.UNEXPECTED, detail=told)
        self._cover_whole(named)
        shape = list(self._weights[named].shape)
        told = f"shape {list(row.shape)} is none that golden's {shape} can become"
        return replace(row, verdict=WeightVerdict.OTHER, detail=told, golden=(named,), count=1)

    def _rows_of(self, name: str) -> int:
        ranks = self._mine.weights.get(name)
        return flat_shape(_of_lowest(ranks).shape)[0] if ranks else 0

    def _judged(self, weight: Weight) -> _Beside | None:
        """What the weight is made of: by its name, or else by its values."""
        best: _Beside | None = None
        for candidates in (self._by_name, self._by_values):
            for composition in candidates(weight):
                for is_scaled in self._scalings(weight, composition):
                    found = self._measured(weight, composition, is_scaled)
                    if found is not None and (best is None or found.closeness > best.closeness):
                        best = found
                    if best is not None and best.matches:
                        return best
            if best is not None:
                return best
        return best

    def _by_name(self, weight: Weight) -> Iterator[Composition]:
        for composition in self._names.compositions(weight.name, self._rows_of):
            if any(self._weights[p.name].problem for group in composition for p in group):
                yield composition
                return
            yield composition
            yield from self._by_experts(weight, composition)

    def _by_values(self, weight: Weight) -> Iterator[Composition]:
        if self._names.find(weight.name):
            return
        sheet = matrices(weight, scale_of(weight, self._mine.weights))[0]
        known = self._lookup.same_as(sheet)
        for name in sorted(known, key=lambda name: name in self._covered):
            yield ((WeightPart(name),),)
        if merged := self._lookup.composition_of(sheet):
            yield merged

    def _by_experts(self, weight: Weight, composition: Composition) -> Iterator[Composition]:
        """The same expert by expert, where both sides have stacks that do not lie alike."""
        if len(composition) > 1 or len(weight.shape) < 3:
            return
        names = {portion.name for portion in composition[0]}
        shapes = {self._weights[name].shape for name in names}
        if len(shapes) == 1 and len(*shapes) == 3 and shapes != {weight.shape}:
            (shape,) = shapes
            yield tuple(
                tuple(replace(portion, expert=expert) for portion in composition[0])
                for expert in range(shape[0])
            )

    def _scalings(self, weight: Weight, composition: Composition) -> Iterator[bool]:
        """Whether codes are held against each other as they are, and whether as numbers."""
        has_scale = scale_of(weight, self._mine.weights) is not None
        scales = [scale_of(self._weights[portion.name], self._golden.weights)
                  for group in composition for portion in group]  # fmt: skip
        if has_scale == any(scales):
            yield False
        if has_scale or any(scales):
            yield True

    def _measured(
        self, weight: Weight, composition: Composition, is_scaled: bool
    ) -> _Beside | None:
        if any(self._weights[p.name].problem for group in composition for p in group):
            return _Beside(composition, (), ())
        per_expert = len(composition) > 1 or composition[0][0].expert is not None
        scale = scale_of(weight, self._mine.weights) if is_scaled else None
        sheets = matrices(weight, scale, per_expert=len(composition) > 1)
        groups = [self._parts(group, is_scaled, per_expert) for group in composition]
        fits = self._fits(weight, sheets, groups)
        if not fits:
            return None
        if is_scaled:
            self._use_scales(weight, composition)
        return _Beside(composition, fits, tuple(map(measure, fits)))

    def _use_scales(self, weight: Weight, composition: Composition) -> None:
        if scale := scale_of(weight, self._mine.weights):
            self._scales[1].add(scale.name)
        for group in composition:
            for portion in group:
                if scale := scale_of(self._weights[portion.name], self._golden.weights):
                    self._scales[0].add(scale.name)

    def _parts(
        self, group: Sequence[WeightPart], is_scaled: bool, per_expert: bool
    ) -> list[Matrix]:
        found = []
        for portion in group:
            weight = self._weights[portion.name]
            scale = scale_of(weight, self._golden.weights) if is_scaled else None
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
            own[0], sheets[0], weight.rank, self._mine.world_size
        )
        if first is None:
            return ()
        return (first, *(_alike(first, s, g) for s, g in zip(sheets[1:], own[1:], strict=True)))

    def _fault(self, weight: Weight, judged: _Beside) -> WeightFault | None:
        """Why it is not golden's; None if it is."""
        if judged.matches:
            return None
        bad = [i for i, found in enumerate(judged.measures) if not found.matches]
        fit, found = judged.fits[bad[0]], judged.measures[bad[0]]
        if found.mine_square and (told := self._stale(judged, bad)):
            return WeightFault(WeightVerdict.STALE, told)
        if found.mine_square and (told := self._exchanged(weight, judged, bad)):
            return WeightFault(WeightVerdict.PERMUTED, told)
        fault = fault_of(fit, found)
        if len(judged.fits) > 1:
            told = f"expert {spans(bad, 4)} of {len(judged.fits)}: {fault.detail}"
            return WeightFault(fault.verdict, told)
        return fault

    def _stale(self, judged: _Beside, bad: Sequence[int]) -> str:
        """Where every wrong element is the older checkpoint's."""
        for i in bad:
            before = self._older_fit(judged, i)
            if before is None or not _is_of_either(judged.fits[i], before):
                return ""
        wrong = sum(judged.measures[i].num_wrong_rows for i in bad)
        rows = sum(fit.mine.rows for fit in judged.fits)
        share = "all" if wrong == rows else f"{wrong} of {rows}"
        return f"it has the older checkpoint's values in {share} rows"

    def _older_fit(self, judged: _Beside, number: int) -> WeightFit | None:
        """The same fit to the weights of the older checkpoint."""
        if self._older is None or self._older_names is None:
            return None
        parts, fit = [], judged.fits[number]
        group = judged.composition[number if len(judged.composition) > 1 else 0]
        for portion, part in zip(group, fit.golden.parts, strict=True):
            name = self._older_names.find(portion.name)
            weight = _of_lowest(self._older.weights[name]) if name else None
            if weight is None or weight.shape != self._weights[portion.name].shape:
                return None
            scale = scale_of(weight, self._older.weights) if part.scale else None
            sheets = matrices(weight, scale, per_expert=part.number is not None)
            parts.append(portion_matrix(portion, sheets))
        golden = Stacked(parts)
        if fit.layout.by_columns:
            golden = golden.columns_of(fit.layout.shard, fit.layout.shards)
        return replace(fit, golden=golden)

    def _exchanged(self, weight: Weight, judged: _Beside, bad: Sequence[int]) -> str:
        """Whose values it has, where those are another weight's or another expert's."""
        if len(judged.fits) > 1:
            return _exchanged_experts(judged, bad)
        fit = judged.fits[0]
        if fit.mine.scale is None and len(fit.golden.parts) == 1 and not fit.layout.num_padded:
            for name in self._lookup.same_as(fit.mine):
                if name != fit.golden.parts[0].name:
                    other = Stacked([matrices(self._weights[name], None)[0]])
                    if (
                        other.rows == fit.golden.rows
                        and measure(replace(fit, golden=other)).matches
                    ):
                        return f"it has the values of golden's {name}"
        for name, composition in self._compositions_of_shape(weight):
            is_scaled = fit.golden.parts[0].scale is not None or fit.mine.scale is not None
            other = Stacked(self._parts(composition[0], is_scaled, False))
            moved = replace(fit, golden=other)
            is_alike = [p.rows for p in other.parts] == [p.rows for p in fit.golden.parts]
            if is_alike and _matches(moved):
                return f"it has the values that {name} should have"
        return ""

    def _compositions_of_shape(self, weight: Weight) -> Iterator[tuple[str, Composition]]:
        """What other weights of the same shape are made of, where they are of several parts."""
        for name, ranks in self._mine.weights.items():
            if name != weight.name and _of_lowest(ranks).shape == weight.shape:
                composition = next(self._names.compositions(name, self._rows_of), None)
                if composition and len(composition) == 1:
                    yield name, composition

    def _cover(self, judged: _Beside) -> None:
        for fit in judged.fits:
            first = 0
            for part in fit.golden.parts:
                rows = fit.layout.rows
                own = rows[(rows >= first) & (rows < first + part.rows)] - first
                covered = self._covering(part.name)
                weight = self._weights[part.name]
                height = flat_shape(weight.shape)[0] // (weight.shape[0] if part.number is not None
                                                         else 1)  # fmt: skip
                covered.rows[own + part.first_row + height * (part.number or 0)] = True
                if fit.layout.by_columns:
                    numbers = covered.columns.setdefault(fit.layout.shards, set())
                    numbers.add(fit.layout.shard)
                first += part.rows

    def _covering(self, name: str) -> _Covered:
        if name not in self._covered:
            rows = np.zeros(flat_shape(self._weights[name].shape)[0], np.bool_)
            self._covered[name] = _Covered(rows, {})
        return self._covered[name]

    def _cover_whole(self, name: str) -> None:
        self._covering(name).rows[:] = True

    def _absent(self) -> Iterator[WeightRow]:
        """What golden has and mine has not, as a whole or in part."""
        activations = []
        for name, weight in self._weights.items():
            row = WeightRow(name, WeightVerdict.MISSING, "", (name,), "", weight.dtype,
                            weight.shape)  # fmt: skip
            if name in self._covered:
                if told := self._covered[name].missing:
                    yield replace(row, detail=told)
            elif name in self._scales[0]:
                continue
            elif twin := self._tied_to(weight):
                told = f"tied: golden has the same values as {twin}, which mine has"
                yield replace(row, verdict=WeightVerdict.EQUAL, detail=told)
            elif _OF_ACTIVATIONS.fullmatch(name):
                activations.append(name)
            else:
                yield replace(row, detail="mine has nothing of it")
        self._remark(activations, "scale of activations", "of golden", "is not in mine",
                     "are not in mine", "scales of activations")  # fmt: skip

    def _tied_to(self, weight: Weight) -> str:
        """A weight of golden with the same elements that mine has."""
        if weight.problem:
            return ""
        whole = matrices(weight, None)[0]
        for name in self._lookup.same_as(whole):
            if name != weight.name and name in self._covered:
                other = WeightFit(
                    whole, Stacked([matrices(self._weights[name], None)[0]]),
                    RowLayout(np.arange(whole.rows)), Cast(whole.torch_dtype),
                )  # fmt: skip
                if measure(other).matches:
                    return name
        return ""


def _of_lowest(ranks: Mapping[int, Weight]) -> Weight:
    return ranks[min(ranks)]


def _out_of_order(pieces: Mapping[int, int]) -> str:
    """Where pieces do not lie on the ranks in order, once or again and again."""
    held = [pieces[rank] for rank in sorted(pieces)]
    first = min(held, default=0)
    turns = [b for a, b in pairwise(held) if b < a]
    if not held or (held[0] == first and all(piece == first for piece in turns)):
        return ""
    shown = ", ".join(map(str, held[:8])) + (", ..." if len(held) > 8 else "")
    return f"its pieces lie on the ranks in the order {shown}"


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


def _is_of_either(fit: WeightFit, before: WeightFit) -> bool:
    """Whether every element is golden's or the older checkpoint's."""
    pairs = zip(blocks(fit), blocks(before), strict=True)
    return all(
        bool((matching(new, mine, fit.cast) | matching(old, mine, before.cast)).all())
        for (_, new, mine), (_, old, _) in pairs
    )


def _matches(fit: WeightFit) -> bool:
    """Whether mine is golden's; a few rows are looked at first."""
    first = np.arange(min(64, fit.mine.rows))
    return agreeing(fit, first) == 1 and measure(fit).matches


def _exchanged_experts(judged: _Beside, bad: Sequence[int]) -> str:
    found = {}
    for i in bad:
        fit = judged.fits[i]
        for j, other in enumerate(judged.fits):
            moved = replace(fit, golden=other.golden)
            if j != i and _matches(moved):
                found[i] = j
                break
    if len(found) < len(bad):
        return ""
    told = ", ".join(f"{i} has golden's {j}" for i, j in list(found.items())[:4])
    return f"experts are in another order: {told}" + ", ..." * (len(found) > 4)


def _told(
    row: WeightRow, judged: _Beside, names: tuple[str, ...], fault: WeightFault | None
) -> WeightRow:
    first = judged.fits[0]
    count = sum(found.count for found in judged.measures)
    num_wrong = sum(found.num_wrong for found in judged.measures)
    row = replace(
        row, golden=names, golden_dtype=first.golden.parts[0].dtype, count=count,
        num_wrong=num_wrong, rel_l2=max(found.rel_l2 for found in judged.measures),
    )  # fmt: skip
    if fault is not None:
        return replace(row, verdict=fault.verdict, detail=fault.detail)
    words = ", ".join(filter(None, _words(row, first, names)))
    if first.layout.transposed:
        part = first.golden.parts[0]
        is_shown = len(names) > 1 or part.rows != part.columns
        return replace(row, verdict=WeightVerdict.TRANSPOSED, detail=words, is_meant=is_shown)
    verdict = WeightVerdict.CAST if _is_cast(first) else WeightVerdict.EQUAL
    return replace(row, verdict=verdict, detail=words)


def _is_cast(fit: WeightFit) -> bool:
    part = fit.golden.parts[0]
    return part.dtype != fit.mine.dtype or fit.cast.via is not None or part.scale is not None


def _words(row: WeightRow, fit: WeightFit, names: Sequence[str]) -> Iterator[str]:
    layout = fit.layout
    if _is_cast(fit):
        yield f"{row.golden_dtype} to {row.dtype} {fit.cast}".strip()
    if fit.mine.scale or fit.golden.parts[0].scale:
        yield "within half a step of its codes" if fit.mine.scale else "scale applied"
    if layout.transposed:
        yield "rows and columns exchanged"
    if layout.num_groups > 1:
        yield f"in {layout.num_groups} groups"
    if layout.shards > 1:
        yield f"1 of {layout.shards} pieces of its {'columns' if layout.by_columns else 'rows'}"
    if layout.num_padded:
        yield counted(int((layout.rows == PADDING).sum()), "row of padding", "rows of padding")
    if (
        len(names) == 1
        and plain_name(names[0]).split(".")[-2:] != plain_name(row.name).split(".")[-2:]
    ):
        yield f"it is golden's {names[0]}"
