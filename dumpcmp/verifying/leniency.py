"""The keywords of torch's own ``same``, and what each lets pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import torch

from dumpcmp.judge import AllCloseValueChecker, Checker, CosineChecker, Fp64Checker
from dumpcmp.nouns.row import Judgement, Row, Verdict
from dumpcmp.verifying.config import VerifyConfig
from dumpcmp.verifying.pairs import ABSENT, Sides

_COSINE = 0.99  # torch's
_MULTIPLIER = 10.0  # the largest of torch's


class Leniency(TypedDict, total=False):
    """The keywords of ``torch._dynamo.utils.same``."""

    tol: float
    cos_similarity: bool
    equal_nan: bool
    exact_dtype: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    use_larger_multiplier_for_smaller_tensor: bool
    force_max_multiplier: bool
    use_iou_for_bool: bool
    iou_threshold: float


@dataclass(frozen=True, slots=True)
class Lenient:
    """What is let pass that would not be otherwise."""

    tol: float | None = None  # of an element: rtol and atol
    cos_similarity: bool = False  # a cosine of 0.99 is enough
    equal_nan: bool | None = None  # False: NaN in the same places differs; otherwise not
    exact_dtype: bool = True
    relax_numpy_equality: bool = False  # numbers of numpy are what they are worth
    ignore_non_fp: bool = False  # what is no float is not compared
    use_larger_multiplier_for_smaller_tensor: bool = False
    force_max_multiplier: bool = False
    use_iou_for_bool: bool = False  # masks need overlap only
    iou_threshold: float = 0.99

    def change(self, config: VerifyConfig, *, with_reference: bool) -> VerifyConfig:
        """`config` with the rules that are asked for; where there is a float64 result, it rules."""
        if not self.exact_dtype:
            config = replace(config, verify_dtype=False)
        checker = self._referring() if with_reference else None
        checker = checker or self._checker()
        return config if checker is None else replace(config, value_checker=checker)

    def _checker(self) -> Checker | None:
        if self.cos_similarity:
            return CosineChecker(_COSINE)
        return None if self.tol is None else AllCloseValueChecker(self.tol, self.tol)

    def _referring(self) -> Checker | None:
        if self.force_max_multiplier:
            return Fp64Checker(_MULTIPLIER, _MULTIPLIER, _MULTIPLIER)
        if self.use_larger_multiplier_for_smaller_tensor:
            return Fp64Checker(small_multiplier=_MULTIPLIER)
        return None

    def forgiven(self, pair: Sides) -> Sides:
        """`pair`, as far as it may differ, in what is the same on both sides."""
        if self.relax_numpy_equality and (_is_number(pair.golden) or _is_number(pair.target)):
            pair = replace(pair, golden=_widest(pair.golden), target=_widest(pair.target))
        golden, target = pair.golden, pair.target
        if not (self.equal_nan and _are_floats(golden, target) and golden.shape == target.shape):
            return pair
        both = golden.isnan() & target.to(golden.device).isnan()
        if not both.any():
            return pair
        filled = golden.masked_fill(both, 0), target.masked_fill(both.to(target.device), 0)
        pair = replace(pair, golden=filled[0], target=filled[1])
        if isinstance(pair.reference, torch.Tensor) and pair.reference.shape == both.shape:
            pair = replace(pair, reference=pair.reference.masked_fill(both, 0))
        return pair

    def judged(self, pair: Sides, row: Row) -> Judgement | None:
        """The judgement on a pair that is not compared by its elements; None where it is."""
        golden, target = pair.golden, pair.target
        if self.equal_nan is False and _have_nan(golden, target):
            return Judgement(Verdict.NONFINITE, "NaN, which equals nothing without equal_nan")
        if target is ABSENT or not isinstance(golden, torch.Tensor):
            return None
        if self.ignore_non_fp and not golden.dtype.is_floating_point:
            return Judgement(Verdict.SKIPPED, "no float, and ignore_non_fp leaves it out")
        is_mask = golden.dtype is torch.bool and isinstance(target, torch.Tensor)
        if not (self.use_iou_for_bool and is_mask and target.dtype is torch.bool):
            return None
        if golden.shape != target.shape:
            return row.judgement
        union = int((golden | target).sum())
        iou = int((golden & target).sum()) / union if union else 1.0
        said = f"intersection over union {iou:.3g}, of {self.iou_threshold:g}"
        return Judgement(Verdict.PASS if iou >= self.iou_threshold else Verdict.FAIL, said)


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"


def _widest(value: Any) -> Any:
    """A number, an array or a tensor as float64, which has what it is worth."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(torch.float64)
    is_plain = _is_number(value) or isinstance(value, bool | int | float)
    return torch.as_tensor(value, dtype=torch.float64) if is_plain else value


def _have_nan(*values: Any) -> bool:
    return any(_are_floats(value) and bool(value.isnan().any()) for value in values)


def _are_floats(*values: Any) -> bool:
    return all(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)
