"""Ranks return parts of what the whole run returns: any indices of one dim, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.slices import Marginals, is_covered_in_order

WHOLE = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BACKWARD = list(range(15, -1, -1))


def covered(*indices: Sequence[int]) -> bool:
    parts = [WHOLE[:, list(some)].clone() for some in indices]
    quantities = [Quantity(load=lambda part=part: part) for part in parts]  # type: ignore[misc]
    return is_covered_in_order(Marginals(WHOLE), quantities)


@pytest.mark.parametrize(
    "indices",
    [
        (range(8), range(8, 16)),
        (range(0, 16, 2), range(1, 16, 2)),
        ([*range(4), *range(12, 16)], range(4, 12)),
        ([0, 3, 4, 9], [1, 2, 5, 6, 7, 8], range(10, 16)),
        ([0, 3, 4, 9], [0, 1, 2, 5, 6, 7, 8], range(9, 16)),
    ],
)
def test_any_indices_in_their_order_are_a_part(indices: Sequence[Sequence[int]]) -> None:
    assert covered(*indices)
    assert not covered(*indices[1:])


@pytest.mark.parametrize(
    "indices",
    [
        (BACKWARD[:8], BACKWARD[8:]),
        ([*range(12, 16), *range(4)], range(4, 12)),
        ([0, 3, 9, 4], [1, 2, 5, 6, 7, 8], range(10, 16)),
        ([*range(4), *range(4)], range(8, 16)),
    ],
)
def test_in_another_order_they_are_none(indices: Sequence[Sequence[int]]) -> None:
    assert not covered(*indices)


def test_other_elements_are_no_part() -> None:
    moved = WHOLE[:, [0, 3, 4, 9]].clone()
    moved[1, 2, 0], moved[1, 3, 0] = moved[1, 3, 0].item(), moved[1, 2, 0].item()
    parts = [Quantity(load=lambda: moved), Quantity(load=lambda: WHOLE[:, [1, 2, *range(5, 9)]])]
    assert not is_covered_in_order(Marginals(WHOLE), [*parts, Quantity(load=lambda: WHOLE[:, 10:])])
