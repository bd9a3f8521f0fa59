"""Finds leaves that are not the same: what no op computed has no rounding to excuse it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dumpcmp.comparing.looks import arithmetic_likeness, likeness, sketched_likeness
from dumpcmp.comparing.side import Side, given_out
from dumpcmp.comparing.summaries import load_summary
from dumpcmp.judge.tolerances import (
    ELEMENT_SHORT,
    ELEMENT_WIDE,
    LEAF_ESTIMATE,
    LEAF_HALF,
    LEAF_SHORT,
    LEAF_WIDE,
    QUANTISED,
    SHORT_EPS,
)
from dumpcmp.measure.elements import farthest
from dumpcmp.nouns.arithmetic import CREATES, is_moment_of_before, weight_name
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.leaf import LeafFinding, LeafKind
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Measured, Metrics, Pair, Trouble
from dumpcmp.nouns.value import Dtype, Value, dtype_named
from dumpcmp.shadows.declared_levels import quantised
from dumpcmp.summary.summary import DEFAULT, Recipe, Summary


def leaf_findings(
    pairs: Sequence[Pair],
    measured: Mapping[Pair, Measured],
    golden: Side,
    target: Side,
    is_apart: bool = False,
) -> dict[Pair, LeafFinding]:
    """The leaves among `pairs`, which are in order of execution, that are other tensors.

    What a run may have computed where nobody looked, such as the input of a later step, counts as
    a leaf only as long as nothing before it differs; `is_apart` where something does already.
    """
    looking = _Looking(_Run(golden), _Run(target))
    found: dict[Pair, LeafFinding] = {}
    known: set[Key] = set()
    # the first step in which anything that is computed differs
    first = -math.inf if is_apart else math.inf
    for pair in pairs:
        one = measured.get(pair)
        if one is None or pair.golden is None or pair.target is None or _is_equal(one):
            continue
        if 0 in golden.listing.record(pair.golden).shape:  # there is nothing that could be another
            continue
        slot, is_later = pair.golden.slot, pair.golden.step > first
        is_after = is_later or (is_apart and not slot.is_weight)  # weights are older than the step
        kind = looking.kind_of(pair.golden, pair.target, is_after)
        finding = looking.finding(kind, pair.golden, pair.target, one) if kind else None
        if finding is not None and finding.key not in known:  # a leaf may come up twice
            found[pair] = finding
            known.add(finding.key)
        is_apart |= slot.is_output
        first = min(first, pair.golden.step if slot.is_output or slot.is_gradient else math.inf)
    return found


def differ_anywhere(pairs: Sequence[Pair], measured: Mapping[Pair, Measured]) -> bool:
    """Whether the sides differ in anything that an op gave out, in either pass."""
    return any(
        pair.both
        and not pair.key.op.is_effect
        and (pair.key.slot.is_output or pair.key.slot.is_gradient)
        and not _is_equal(measured[pair])
        for pair in pairs
        if pair in measured
    )


def _is_equal(measured: Measured) -> bool:
    return measured.metrics is not None and measured.metrics.equal


@dataclass
class _Run:
    """One side, and what of it tells leaves from what was computed."""

    side: Side

    def record(self, key: Key) -> Record:
        return self.side.listing.record(key)

    def is_known(self, key: Key) -> bool:
        """Whether it is a value that came up before, as what it is now."""
        if self.record(key).same_as is None:
            return False
        return not (key.slot.is_weight and self.side.listing.first(key).slot.is_input)

    @cached_property
    def is_complete(self) -> bool:
        """Whether every op of the run is there: no filter, and nothing that a compiler hides."""
        stated = [facts.get("run", {}) for facts in self.side.archive.run.values()]
        return bool(stated) and all(map(_shows_all, stated)) and self.side.is_whole

    @cached_property
    def given_out(self) -> frozenset[str]:
        """Digests of what ops of the run gave out."""
        return self.side.given_before | given_out(self.side.listing)

    @cached_property
    def names(self) -> dict[str, Key]:
        """What the bytes of a value are first called; of Summaries, those of weights."""
        found: dict[str, Key] = {}
        for key, (record, *_) in self.side.listing.values.items():
            if math.prod(record.shape) > 1 and (record.stored is None or key.slot.is_weight):
                found.setdefault(self.digest(key), key)
        return found

    @cached_property
    def weights(self) -> dict[str, list[Key]]:
        """The parameters and buffers with these digests, as modules call them."""
        found: dict[str, list[Key]] = defaultdict(list)
        for key in self.side.listing.values:
            if key.slot.is_weight:
                found[self.digest(key)].append(key)
        return found

    def weight(self, key: Key) -> Key:
        """The parameter or buffer that a value is, where that is known; else itself."""
        if key.slot.is_weight:
            return key
        same = self.weights.get(self.digest(key), [])
        near = [each for each in same if each.op == key.op.module]
        return near[0] if near else same[0] if len(same) == 1 else key

    def digest(self, key: Key) -> str:
        """Of the elements of a value; its own name where nobody took it."""
        record = self.record(key)
        if record.stored is None:
            return record.digest
        if record.sample is not None:
            return str(key)
        summary = self.summary(key)
        return summary.digest or summary.checksum or str(key)

    def summary(self, key: Key, recipe: Recipe = DEFAULT) -> Summary:
        return load_summary(self.side.archive, self.record(key), recipe)

    def load(self, key: Key) -> Value | None:
        return self.side.load(key)


def _shows_all(run: Mapping[str, object]) -> bool:
    filters = run.get("filters")
    if not isinstance(filters, Mapping):
        return False
    unfiltered = not any(filters.get(name) for name in ("layers", "tokens", "every"))
    all_values = filters.get("io") == "all" and filters.get("level") == "functions"
    return unfiltered and all_values and run.get("mode") in ("eager", "fx", "aten")


@dataclass(frozen=True)
class _Looking:
    """Both sides while their leaves are looked for."""

    golden: _Run
    target: _Run

    def kind_of(self, golden: Key, target: Key, is_apart: bool) -> LeafKind | None:
        """What kind of a leaf a pair is; None where it is none, or nobody can know."""
        sides = ((self.golden, golden), (self.target, target))
        if any(run.is_known(key) for run, key in sides):
            return None
        is_first = all(run.side.first_steps[key.model] == key.step for run, key in sides)
        slot = golden.slot
        if slot.is_weight:
            if not is_first:  # an optimizer made it, whose rounding may be another
                return None if is_apart else LeafKind.BUFFER
            return LeafKind.PARAMETER if slot.kind == "param" else LeafKind.BUFFER
        if slot.is_output:
            return LeafKind.CONSTANT if golden.op.function in CREATES else None
        if not slot.is_input or any(run.record(k).digest in run.given_out for run, k in sides):
            return None
        if is_moment_of_before(golden):
            return None
        if is_first and (weight_name(golden) or self.golden.digest(golden) in self.golden.weights):
            return LeafKind.PARAMETER
        is_complete = self.golden.is_complete and self.target.is_complete
        if golden.op == ROOT and not is_apart and (is_complete or golden.step == 0):
            return LeafKind.INPUT
        return LeafKind.CONSTANT if is_complete and not is_apart else None

    def finding(
        self, kind: LeafKind, golden: Key, target: Key, measured: Measured
    ) -> LeafFinding | None:
        """What to say of a leaf whose bits are not golden's; None where it is the same for all."""
        ours, theirs = self.golden.record(golden), self.target.record(target)
        metrics = measured.metrics
        if metrics is None:
            is_shape = measured.trouble is Trouble.SHAPE
            return self._told(kind, golden, target, measured.said) if is_shape else None
        dtypes = dtype_named(ours.dtype), dtype_named(theirs.dtype)
        if dtypes[0] != dtypes[1] and kind is LeafKind.CONSTANT:
            return None  # which may be the least number of its dtype; the calls tell
        if dtypes[0] != dtypes[1]:
            said = _cast(metrics, *dtypes)
            return self._told(kind, golden, target, said, metrics) if said else None
        how = f"rel_l2 {metrics.rel_l2:.3g}"
        if _is_excused(kind, metrics, dtypes[0]):
            worst = self._worst(golden, target, metrics, dtypes[0])
            if not worst:
                return None
            how = f"{how}, but an element is {worst:.3g} off"
        return self._told(kind, golden, target, how, metrics)

    def _worst(self, golden: Key, target: Key, metrics: Metrics, dtype: Dtype) -> float:
        """How far off an element is that is no rounding, and that larger ones hide; else 0."""
        limit = (ELEMENT_SHORT if dtype.eps > SHORT_EPS else ELEMENT_WIDE) * dtype.eps
        if not metrics.exact or not dtype.eps or metrics.max_rel_err_plain <= limit:
            return 0.0
        try:
            ours, theirs = self.golden.load(golden), self.target.load(target)
        except DumpcmpError:  # which the row of the value tells
            return 0.0
        if ours is None or theirs is None:
            return 0.0
        worst = farthest(ours, theirs)
        return worst if worst > limit else 0.0

    def _told(
        self, kind: LeafKind, golden: Key, target: Key, how: str, metrics: Metrics | None = None
    ) -> LeafFinding:
        name = self.golden.weight(golden)
        said = f"{name_of(name)} is not the same {_WORDS[kind]}: {how}"
        like = self._like(golden, target)
        if metrics is not None and not like:
            like = arithmetic_likeness(metrics, dtype_named(self.golden.record(golden).dtype).eps)
        rel_l2 = metrics.rel_l2 if metrics is not None else math.nan
        return LeafFinding(name, kind, f"{said}; {like}" if like else said, rel_l2)

    def _like(self, golden: Key, target: Key) -> str:
        """What the target's value looks like: another one of golden's, or golden's own, changed."""
        try:
            other = self.golden.names.get(self.target.digest(target))
            if other is not None and self.golden.weight(other) != self.golden.weight(golden):
                when = f" at token {other.step}" if other.step != golden.step else ""
                return f"it is golden's {name_of(self.golden.weight(other))}{when}"
            ours, theirs = self.golden.load(golden), self.target.load(target)
            if ours is not None and theirs is not None:
                return likeness(ours, theirs) or _on_levels(ours, theirs)
            return self._sketched(golden, target)
        except DumpcmpError:  # which the row of the value tells
            return ""

    def _sketched(self, golden: Key, target: Key) -> str:
        sides = ((self.golden, golden), (self.target, target))
        records = [run.side.listing.values[key] for run, key in sides]
        if any(len(held) > 1 or held[0].sample for held in records):
            return ""
        if not any(held[0].stored for held in records):
            return ""
        known = next(run.summary(key) for run, key in sides if run.record(key).stored)
        ours, theirs = (run.summary(key, known.recipe) for run, key in sides)
        return sketched_likeness(ours, theirs, dtype_named(ours.dtype).eps)


def _on_levels(golden: Value, target: Value) -> str:
    """What a tensor looks like that was quantised, where nobody has declared that."""
    found = quantised(golden, target, QUANTISED)
    if found is None:
        return ""
    return f"it is {found.said}: --allow {found.levels.name}, if that is meant"


_WORDS = {
    LeafKind.PARAMETER: "tensor", LeafKind.BUFFER: "tensor",
    LeafKind.INPUT: "input", LeafKind.CONSTANT: "constant",
}  # fmt: skip


def name_of(key: Key) -> str:
    """What a reader calls a leaf: ``layers.3.mlp.w2.weight``."""
    if key.slot.is_weight:
        return f"{key.op}.{key.slot.name}" if key.op != ROOT else key.slot.name
    word = weight_name(key)
    return f"{key.op.module}.{word}" if word else f"{key.op}#{key.call} {key.slot}"


def _cast(metrics: Metrics, golden: Dtype, target: Dtype) -> str:
    """In what a leaf of another dtype is not golden's, cast; empty where it is, or may be.

    A dtype of 8 bits comes with a scale of its own.
    """
    if min(golden.nbytes, target.nbytes) < 2 or golden.kind != target.kind:
        return ""
    if not metrics.max_abs_diff or (metrics.exact and metrics.max_ulp <= LEAF_HALF):
        return ""
    if not metrics.exact and metrics.rel_l2 <= max(golden.eps, target.eps) / 2:
        return ""
    return f"it is not golden's {golden} cast to {target}: rel_l2 {metrics.rel_l2:.3g}"


def _is_excused(kind: LeafKind, metrics: Metrics, dtype: Dtype) -> bool:
    """Whether a leaf may be the same although its bits are not known to be."""
    if metrics.sample is not None and not metrics.max_abs_diff and metrics.nonfinite_agree:
        return True
    if not metrics.exact and not metrics.mismatched:
        return metrics.rel_l2 <= LEAF_ESTIMATE
    if kind is LeafKind.PARAMETER or not metrics.nonfinite_agree:
        return False
    limit = LEAF_SHORT if dtype.eps > SHORT_EPS else LEAF_WIDE
    return metrics.rel_l2 <= limit * dtype.eps
