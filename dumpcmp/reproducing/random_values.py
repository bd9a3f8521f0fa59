"""Random numbers in place of those of a run, for who may not share them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.case import ErrorMeasure, GuiltyKind, ReproCase, ShownBy
from dumpcmp.reproducing.parallel_case import ParallelCase
from dumpcmp.reproducing.trials import Trials

_SEEDS = 3


def without_values(case: ReproCase, trials: Trials) -> ReproCase:
    """`case` on random numbers, if the fault shows on any that are tried."""
    if isinstance(case, ParallelCase):
        why = "the ranks' parts of one value would not belong together"
    elif case.shown is ShownBy.FRESH and case.kind is not GuiltyKind.VALUE:
        for values in _draws(case.values):
            drawn = _on(case, values)
            if drawn is not None and trials.shows(drawn):
                return drawn
        why = f"it shows on none of {2 * _SEEDS} draws"
    else:
        why = "it is in what the run recorded, and not in the code"
    raise Unreplayable(
        f"the fault at {case.place} cannot be shown on random numbers: {why}",
        hint="leave --no-values out, if the values of this one op may be shared",
    )


def _on(case: ReproCase, values: Mapping[str, Tensor]) -> ReproCase | None:
    right = case.golden or case.mine
    try:
        expected = right.run(values)
    except Unreplayable:
        return None  # such as an index that is out of range
    if case.measure is ErrorMeasure.EXACT:
        expected = expected.to(case.expected.dtype)
    return replace(case, values=values, expected=expected, recorded=None, is_random=True)


def _draws(values: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Numbers of size 1, and numbers as large as those of the run were: a power of two."""
    for is_sized in (False, True):
        for seed in range(_SEEDS):
            generator = torch.Generator().manual_seed(seed)
            yield {name: _drawn(value, generator, is_sized) for name, value in values.items()}


def _drawn(value: Tensor, generator: torch.Generator, is_sized: bool) -> Tensor:
    """A tensor like `value` in shape, dtype and strides; of its numbers only the range is known."""
    made = torch.empty_like(value)
    if not value.numel():
        return made
    if value.is_floating_point() or value.is_complex():
        dtype = torch.complex128 if value.is_complex() else torch.float64
        numbers = torch.randn(value.shape, dtype=dtype, generator=generator)
        return made.copy_(numbers * (_power(value) if is_sized else 1.0))
    low, high = (0, 1) if value.dtype is torch.bool else (int(value.min()), int(value.max()))
    return made.copy_(torch.randint(low, high + 1, value.shape, generator=generator))


def _power(value: Tensor) -> float:
    """A power of two near the largest finite number."""
    finite = value[value.isfinite()].abs().double()
    largest = finite.max() if finite.numel() else torch.ones(())
    return float(2.0 ** torch.ceil(torch.log2(largest))) if largest > 0 else 1.0
