"""Lays what golden and the target gave side by side, and has each pair measured and judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dumpcmp.judge import INEXACT, Checker, Conditions, Fp64Checker, ReferenceErrors, judge
from dumpcmp.judge.tolerances import noise
from dumpcmp.measure.elements import usual_error
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Key, Slot
from dumpcmp.nouns.row import Judgement, Metrics, PairedBy, Row, Verdict
from dumpcmp.nouns.value import DTYPES, Dtype, Kind, Value, dtype_named, value_of
from dumpcmp.pytorch.trees import PLAIN
from dumpcmp.verifying.config import VerifyConfig
from dumpcmp.verifying.observe import Observation

ABSENT = object()  # in place of a value that one side does not have


@dataclass(frozen=True, slots=True)
class Sides:
    """One path and what each side has there; `reference` is golden's in float64."""

    path: str
    golden: Any
    target: Any
    reference: Any = ABSENT


Left = Mapping[str, torch.Tensor]  # inputs and state, by the paths of an Observation


def paired(
    golden: Observation, target: Observation, reference: Observation | None, before: Sequence[Left]
) -> Iterator[Sides]:
    """Every value of either side in one Sides, golden's order first.

    Inputs and state are paired where either side has changed what it had `before`.
    """
    sides = golden, target, reference or Observation({}, {}, {}, {})
    changed = {*_differing(before[0], golden.left), *_differing(before[1], target.left)}
    yield from _union(*(side.outputs for side in sides))
    yield from _union(*({p: v for p, v in side.left.items() if p in changed} for side in sides))
    yield from _union(*(side.grads for side in sides))


def unlike_leaves(before: Sequence[Left]) -> Iterator[str]:
    """What to say of parameters and buffers that are not the same on both sides to begin with.

    It is a remark: a model that was folded or quantised has other weights than golden by design.
    """
    golden, target = (
        {path: leaf for path, leaf in side.items() if not path.startswith("mutated")}
        for side in before
    )
    common = {path: leaf for path, leaf in golden.items() if path in target}
    unlike = [path for path, leaf in common.items() if not _same_leaf(leaf, target[path])]
    if unlike:
        others = f" and {len(unlike) - 1} more" if len(unlike) > 1 else ""
        yield f"the target does not begin with golden's {unlike[0]}{others}"


def _same_leaf(golden: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether both hold the same elements, or the target golden's in its own dtype."""
    if golden is target:
        return True
    cast = golden.detach().to(target.device, target.dtype)
    return golden.shape == target.shape and torch.equal(cast, target)


def _differing(before: Left, after: Left) -> Iterator[str]:
    for path, tensor in after.items():
        known = before.get(path)
        if known is None or known.shape != tensor.shape or not torch.equal(known, tensor):
            yield path


def _union(
    golden: Mapping[str, Any], target: Mapping[str, Any], reference: Mapping[str, Any]
) -> Iterator[Sides]:
    for path in [*golden, *(path for path in target if path not in golden)]:
        sides = (side.get(path, ABSENT) for side in (golden, target, reference))
        yield Sides(path, *sides)


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between the inputs and a value: how many ops, and the coarsest dtype of golden's.

    A loss in float32 over bfloat16 logits carries the rounding of bfloat16.
    """

    depth: int
    coarsest: Dtype | None

    @classmethod
    def of(cls, golden: Observation, depth: int) -> Way:
        """The way through a model of `depth` ops, from the values that were seen of it."""
        seen = (golden.outputs, golden.left)
        tensors = (leaf for side in seen for leaf in side.values())
        names = {str(leaf.dtype) for leaf in tensors if isinstance(leaf, torch.Tensor)}
        known = [d for d in DTYPES.values() if f"torch.{d.name}" in names and d.kind is Kind.FLOAT]
        return cls(depth, max(known, key=lambda dtype: dtype.eps, default=None))


def row_of(pair: Sides, model: str, order: int, config: VerifyConfig, way: Way) -> Row:
    """The outcome for one pair: attributes first, then elements."""
    golden, target = _as_tensor(pair.golden), _as_tensor(pair.target)
    key = Key(model, 0, ROOT, 0, pair.path)
    row = Row(key, order, Judgement(Verdict.PASS), paired_by=PairedBy.PATH)
    if not isinstance(golden, torch.Tensor) or not isinstance(target, torch.Tensor):
        return replace(row, judgement=_without_elements(key.slot, golden, target))
    row = replace(
        row,
        golden_dtype=str(golden.dtype).removeprefix("torch."),
        target_dtype=str(target.dtype).removeprefix("torch."),
        golden_shape=tuple(golden.shape),
        target_shape=tuple(target.shape),
    )
    if golden.shape != target.shape and (config.verify_shape or golden.numel() != target.numel()):
        return replace(row, judgement=_unlike(Verdict.SHAPE, "shape", golden.shape, target.shape))
    if config.verify_stride and key.slot.is_output and _lie_apart(golden, target):
        strides = golden.stride(), target.stride()
        return replace(row, judgement=_unlike(Verdict.FAIL, "strides", *strides))
    way = Way(2 * way.depth, way.coarsest) if key.slot.is_gradient else way
    try:
        values = _Values.of(golden, target, _as_tensor(pair.reference), way, key.slot)
    except DumpcmpError as error:
        return replace(row, judgement=Judgement(Verdict.ERROR, error.message))
    return _valued(row, values, config)


def without_noise(rows: Sequence[Row], config: VerifyConfig) -> Iterator[Row]:
    """`rows`, with gradients that are mere rounding beside the largest gradient let pass.

    The gradient of a bias before a batch norm is zero, but for the rounding of what cancels in it.
    """
    measured = {id(row): row.metrics for row in rows if row.key.slot.is_gradient}
    extents = [metrics.golden for metrics in measured.values() if metrics]
    largest = max((max(abs(extent.min), abs(extent.max)) for extent in extents), default=0.0)
    for row in rows:
        metrics = measured.get(id(row))
        if metrics is None or row.verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            yield row
            continue
        eps = max(dtype_named(row.golden_dtype).eps, dtype_named(row.target_dtype).eps)
        within = metrics.max_abs_diff <= max(config.noise, eps) * largest
        said = (
            f"max_abs_diff {metrics.max_abs_diff:.3g} is rounding noise beside the largest "
            f"gradient, {largest:.3g}"
        )
        yield replace(row, judgement=Judgement(Verdict.PASS, said)) if within else row


def _as_tensor(value: Any) -> Any:
    """Numbers, arrays and sparse tensors as dense tensors, so that one rule judges all of them."""
    if isinstance(value, bool | int | float | complex):
        kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
        return torch.tensor(value, dtype=kinds.get(type(value), torch.complex128))
    if isinstance(value, np.ndarray | np.number) and value.dtype.kind in "biufc":
        return torch.as_tensor(value)
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return value.to_dense()
    return value


def _without_elements(slot: Slot, golden: Any, target: Any) -> Judgement:
    """The judgement where at least one side is no tensor."""
    if golden is ABSENT or target is ABSENT:
        there, side = (target, "the target") if golden is ABSENT else (golden, "golden")
        if slot.is_gradient and isinstance(there, torch.Tensor) and not there.any():
            return Judgement(Verdict.PASS, f"zero in {side}, absent from the other side")
        return Judgement(Verdict.UNPAIRED, f"only {side} has it")
    if type(golden) is not type(target):
        said = f"golden gives {_kind(golden)}, the target {_kind(target)}"
        return Judgement(Verdict.FAIL, said)
    if not isinstance(golden, PLAIN):
        said = f"{_kind(golden)} holds no tensors, and cannot be compared"
        return Judgement(Verdict.INCONCLUSIVE, said)
    if golden == target:
        return Judgement(Verdict.PASS)
    return Judgement(Verdict.FAIL, f"golden gives {golden!r}, the target {target!r}")


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _unlike(verdict: Verdict, what: str, golden: Sequence[int], target: Sequence[int]) -> Judgement:
    return Judgement(verdict, f"golden has {what} {list(golden)}, the target {list(target)}")


def _lie_apart(golden: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the strides differ in a dim that has more than one element."""
    strides = zip(golden.shape, golden.stride(), target.stride(), strict=True)
    return any(size > 1 and ours != theirs for size, ours, theirs in strides)


def _valued(row: Row, pair: _Values, config: VerifyConfig) -> Row:
    """The row with its elements measured and judged, and its dtypes held against each other."""
    if not config.verify_values:
        unseen = Judgement(Verdict.PASS, "values not compared")
        return replace(row, judgement=_dtypes(row, config) or unseen)
    metrics, judgement = pair.judged(config)
    return replace(
        row,
        metrics=metrics,
        judgement=_dtypes(row, config) or judgement,
        reference_errors=pair.errors,
    )


def _dtypes(row: Row, config: VerifyConfig) -> Judgement | None:
    """The judgement on dtypes that differ, where they are checked."""
    if not config.verify_dtype or row.golden_dtype == row.target_dtype:
        return None
    said = f"golden is {row.golden_dtype}, the target {row.target_dtype}"
    return Judgement(Verdict.DTYPE, said)


@dataclass(frozen=True, slots=True)
class _Values:
    """The elements of a pair, of one shape, and the errors of both against the reference."""

    golden: Value
    target: Value
    errors: ReferenceErrors | None
    way: Way
    is_gradient: bool

    @classmethod
    def of(
        cls, golden: torch.Tensor, target: torch.Tensor, reference: Any, way: Way, slot: Slot
    ) -> _Values:
        ours, theirs = value_of(golden), value_of(target.reshape(golden.shape))
        return cls(ours, theirs, _errors(ours, theirs, reference), way, slot.is_gradient)

    def judged(self, config: VerifyConfig) -> tuple[Metrics, Judgement]:
        """The Metrics, and the judgement of the first checker that does not pass."""
        for checker in config.checkers:
            metrics = measure(self.golden, self.target, checker.closeness)
            judgement = self._judged_by(checker, metrics, config)
            if judgement.verdict is not Verdict.PASS:
                break
        return metrics, judgement

    def _judged_by(self, checker: Checker, metrics: Metrics, config: VerifyConfig) -> Judgement:
        conditions = Conditions(
            self.golden.dtype, self.target.dtype, self.way.depth, shape=self.golden.shape,
            reference=self.errors, on_the_way=self.way.coarsest, usual=self._usual(metrics),
        )  # fmt: skip
        if config.reference and metrics.mismatched and conditions.kinds & INEXACT:
            if self.errors is None:
                return Judgement(Verdict.INCONCLUSIVE, "golden gives no float64 value to refer to")
            checker = Fp64Checker() if not isinstance(checker, Fp64Checker) else checker
        return judge(metrics, conditions, checker)

    def _usual(self, metrics: Metrics) -> float:
        """What most elements are off, where that may be more than rounding.

        Of gradients parts may be zero but for rounding, such as those of the biases of keys.
        """
        eps = max(self.golden.dtype.eps, self.target.dtype.eps)
        is_small = metrics.equal or not eps or metrics.mean_rel_err_plain <= noise(eps)
        if is_small or self.is_gradient:
            return 0.0
        return usual_error(self.golden, self.target, metrics.golden_rms)


def _errors(golden: Value, target: Value, reference: Any) -> ReferenceErrors | None:
    """The rmse of both sides against `reference`, if that is a float64 value of their shape."""
    if not isinstance(reference, torch.Tensor) or golden.dtype.kind is not Kind.FLOAT:
        return None
    if reference.dtype != torch.float64 or tuple(reference.shape) != golden.shape:
        return None
    truth = value_of(reference)
    ours = measure(truth, golden)
    rms = ours.golden.norm / max(1, golden.numel) ** 0.5
    return ReferenceErrors(ours.rmse, measure(truth, target).rmse, rms)
