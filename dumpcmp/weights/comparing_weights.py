"""Holds the weights that a program has loaded against those of its checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from dumpcmp.importing.foreign import in_natural_order
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.spoken import counted, spans
from dumpcmp.weights.casting import Cast, matching
from dumpcmp.weights.checkpoint_files import Checkpoint, Weight, opened_weights
from dumpcmp.weights.coverage import Coverage
from dumpcmp.weights.matrices import matrices, portion_matrix, scale_of
from dumpcmp.weights.measured_weights import blocks, measure
from dumpcmp.weights.row_layouts import PADDING, RowLayout, Stacked, WeightFit, agreeing
from dumpcmp.weights.weight_faults import WeightFault, fault_of
from dumpcmp.weights.weight_matching import MatchedWeight, WeightMatcher, of_lowest
from dumpcmp.weights.weight_names import WeightNames, plain_name
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


class _Comparison:
    """Two checkpoints, and what was found of them so far."""

    def __init__(self, golden: Checkpoint, mine: Checkpoint, older: Checkpoint | None) -> None:
        self._golden, self._mine, self._older = golden, mine, older
        self._matcher = WeightMatcher(golden, mine)
        self._older_names = WeightNames(older.weights) if older else None
        self._coverage = Coverage(self._matcher.weights)
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
            if name in self._matcher.my_scales:
                continue
            row = self._row(name)
            if row.verdict is WeightVerdict.UNEXPECTED and not row.golden:
                if of_lowest(self._mine.weights[name]).is_buffer:
                    buffers.append(name)
                    continue
                if _OF_ACTIVATIONS.fullmatch(name):
                    activations.append(name)
                    continue
            yield row
        yield from self._absent()
        self._remark(self._matcher.found_by_values, "weight", "of mine", "was found by its values",
                     "were found by their values, since no name fits")  # fmt: skip
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
            composition = next(
                self._matcher.names.compositions(weight.name, self._matcher.rows_of), ()
            )
            for part in (part for group in composition for part in group):
                self._coverage.add_whole(part.name)
            return row
        judged = self._matcher.match(weight)
        if judged is None:
            return self._without_golden(row)
        names = tuple(dict.fromkeys(p.name for group in judged.composition for p in group))
        if lost := [
            self._matcher.weights[name] for name in names if self._matcher.weights[name].problem
        ]:
            return replace(row, detail=f"golden's {lost[0].name}: {lost[0].problem}", golden=names)
        self._coverage.add(judged)
        self._matcher.used.update(names)
        if judged.fits[0].layout.shards > 1:
            self._pieces[weight.name][weight.rank] = judged.fits[0].layout.shard
        return _told(row, judged, names, self._fault(weight, judged))

    def _without_golden(self, row: WeightRow) -> WeightRow:
        named = self._matcher.names.find(row.name)
        if named is None:
            told = "golden has no weight of this name, nor one with these values"
            return replace(row, verdict=WeightVerdict.UNEXPECTED, detail=told)
        self._coverage.add_whole(named)
        shape = list(self._matcher.weights[named].shape)
        told = f"shape {list(row.shape)} is none that golden's {shape} can become"
        return replace(row, verdict=WeightVerdict.OTHER, detail=told, golden=(named,), count=1)

    def _fault(self, weight: Weight, judged: MatchedWeight) -> WeightFault | None:
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

    def _stale(self, judged: MatchedWeight, bad: Sequence[int]) -> str:
        """Where every wrong element is the older checkpoint's."""
        for i in bad:
            before = self._older_fit(judged, i)
            if before is None or not _is_of_either(judged.fits[i], before):
                return ""
        wrong = sum(judged.measures[i].num_wrong_rows for i in bad)
        rows = sum(fit.mine.rows for fit in judged.fits)
        share = "all" if wrong == rows else f"{wrong} of {rows}"
        return f"it has the older checkpoint's values in {share} rows"

    def _older_fit(self, judged: MatchedWeight, number: int) -> WeightFit | None:
        """The same fit to the weights of the older checkpoint."""
        if self._older is None or self._older_names is None:
            return None
        parts, fit = [], judged.fits[number]
        group = judged.composition[number if len(judged.composition) > 1 else 0]
        for portion, part in zip(group, fit.golden.parts, strict=True):
            name = self._older_names.find(portion.name)
            weight = of_lowest(self._older.weights[name]) if name else None
            if weight is None or weight.shape != self._matcher.weights[portion.name].shape:
                return None
            scale = scale_of(weight, self._older.weights) if part.scale else None
            sheets = matrices(weight, scale, per_expert=part.number is not None)
            parts.append(portion_matrix(portion, sheets))
        golden = Stacked(parts)
        if fit.layout.by_columns:
            golden = golden.columns_of(fit.layout.shard, fit.layout.shards)
        return replace(fit, golden=golden)

    def _exchanged(self, weight: Weight, judged: MatchedWeight, bad: Sequence[int]) -> str:
        """Whose values it has, where those are another weight's or another expert's."""
        if len(judged.fits) > 1:
            return _exchanged_experts(judged, bad)
        fit = judged.fits[0]
        if fit.mine.scale is None and len(fit.golden.parts) == 1 and not fit.layout.num_padded:
            for name in self._matcher.lookup.same_as(fit.mine):
                if name != fit.golden.parts[0].name:
                    other = Stacked([matrices(self._matcher.weights[name], None)[0]])
                    if (
                        other.rows == fit.golden.rows
                        and measure(replace(fit, golden=other)).matches
                    ):
                        return f"it has the values of golden's {name}"
        for name, composition in self._matcher.compositions_of_shape(weight):
            is_scaled = fit.golden.parts[0].scale is not None or fit.mine.scale is not None
            other = Stacked(self._matcher.parts(composition[0], is_scaled, False))
            moved = replace(fit, golden=other)
            is_alike = [p.rows for p in other.parts] == [p.rows for p in fit.golden.parts]
            if is_alike and _matches(moved):
                return f"it has the values that {name} should have"
        return ""

    def _absent(self) -> Iterator[WeightRow]:
        """What golden has and mine has not, as a whole or in part."""
        activations = []
        for name, weight in self._matcher.weights.items():
            row = WeightRow(name, WeightVerdict.MISSING, "", (name,), "", weight.dtype,
                            weight.shape)  # fmt: skip
            if name in self._coverage:
                if told := self._coverage.missing(name):
                    yield replace(row, detail=told)
            elif name in self._matcher.golden_scales:
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
        for name in self._matcher.lookup.same_as(whole):
            if name != weight.name and name in self._coverage:
                other = WeightFit(
                    whole, Stacked([matrices(self._matcher.weights[name], None)[0]]),
                    RowLayout(np.arange(whole.rows)), Cast(whole.torch_dtype),
                )  # fmt: skip
                if measure(other).matches:
                    return name
        return ""


def _out_of_order(pieces: Mapping[int, int]) -> str:
    """Where pieces do not lie on the ranks in order, once or again and again."""
    held = [pieces[rank] for rank in sorted(pieces)]
    first = min(held, default=0)
    turns = [b for a, b in pairwise(held) if b < a]
    if not held or (held[0] == first and all(piece == first for piece in turns)):
        return ""
    shown = ", ".join(map(str, held[:8])) + (", ..." if len(held) > 8 else "")
    return f"its pieces lie on the ranks in the order {shown}"


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


def _exchanged_experts(judged: MatchedWeight, bad: Sequence[int]) -> str:
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
    row: WeightRow, judged: MatchedWeight, names: tuple[str, ...], fault: WeightFault | None
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
