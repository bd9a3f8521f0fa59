"""Floats that programs read off tensors and call with: one quantity, rounded by each run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dumpcmp.shadows.quantities import LoadTensor, Quantity

_FLOAT = re.compile(r"-?\b\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)")
_SAME_RATIO = 1e-6  # of two numbers that were made of one by a float of Python


@dataclass(frozen=True, slots=True, eq=False)
class SingleNumber:
    """A value of one number: what it is, and how to read what was recorded of it."""

    quantity: Quantity
    load: LoadTensor

    @property
    def recorded(self) -> float:
        return float(self.load())


def are_read_alike(
    ours: str, theirs: str, golden: Iterable[SingleNumber], target: Iterable[SingleNumber]
) -> bool:
    """Whether two texts of arguments differ in nothing but floats that were read off tensors.

    Of each such float both runs have the quantity that it was read off, or it is that times some
    number, or some number divided by it.
    """
    if _FLOAT.sub("#", ours) != _FLOAT.sub("#", theirs):
        return False
    both = zip(_FLOAT.findall(ours), _FLOAT.findall(theirs), strict=True)
    differing = [(float(one), float(other)) for one, other in both if one != other]
    if not differing or not all(one and other for one, other in differing):
        return False
    ratios = list(_ratios(golden, list(target)))
    return all(any(_is_ratio(other / one, each) for each in ratios) for one, other in differing)


def _ratios(golden: Iterable[SingleNumber], target: list[SingleNumber]) -> Iterator[float]:
    """How the target's numbers are to golden's, of quantities that both have."""
    for one in golden:
        for other in target:
            if one.quantity.is_same(other.quantity) and (its := one.recorded):
                yield other.recorded / its


def _is_ratio(found: float, ratio: float) -> bool:
    return any(
        math.isclose(found, each, rel_tol=_SAME_RATIO)
        for each in (ratio, 1 / ratio if ratio else math.inf)
    )
