"""Many small values held against their replays at once, each as it would be alone, to the bit."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from dumpcmp.replay.holding import hold
from dumpcmp.replay.holding_together import (
    MOST,
    ReplayedValue,
    hold_all,
)
from dumpcmp.replay.rating import Rerun

SHAPES = [(), (1,), (7,), (1, 1, 32), (1, 20, 33), (2, 3, 4, 9), (5, 8, 100), (65, 64), (0, 3)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SLOT = "output.0"


def replayed(shape: tuple[int, ...], dtype: torch.dtype, *, odd: float = 0.0) -> ReplayedValue:
    """A value beside a replay, with whatever comes beside it drawn."""
    size, error = 10.0 ** torch.randint(-3, 4, ()).item(), 10.0 ** -torch.randint(3, 12, ()).item()
    known = torch.randn(shape, dtype=torch.float64) * size
    known = known.transpose(0, -1) if shape and torch.rand(()) > 0.7 else known
    if known.ndim == 4 and torch.rand(()) > 0.5:  # which torch.stack keeps
        known = known.contiguous(memory_format=torch.channels_last)
    known = known * (torch.rand(known.shape) > 0.1)
    got = (known * (1 + error * torch.randn(known.shape, dtype=torch.float64))).to(dtype)
    got = torch.where(torch.rand(got.shape) > 0.9, odd, got) if odd else got
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    has_terms, pointwise, nearest, is_exact = (torch.rand(4) > 0.5).tolist()
    rerun = Rerun(
        {SLOT: known},
        {SLOT: 1 + torch.rand(()).item()},
        {SLOT: 1e-6},
        terms={SLOT: (3 * known.abs()).to(wide)} if has_terms else {},
        is_pointwise=pointwise,
        is_nearest=nearest,
        is_exact=is_exact and torch.rand(()).item() > 0.7,
        num_ops=3,
    )
    return ReplayedValue(rerun, SLOT, got)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_is_held_as_if_it_were_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    asked = [replayed(shape, dtype) for shape, _ in product(SHAPES, range(24))]
    asked += [replayed((3, 5), dtype, odd=odd) for odd in (math.inf, math.nan) for _ in range(6)]
    asked += [ReplayedValue(Rerun({}), SLOT, torch.ones(3)) for _ in range(2)]
    asked += [ReplayedValue(Rerun({SLOT: torch.ones(4).double()}), SLOT, torch.ones(3))]
    asked += [
        ReplayedValue(Rerun({SLOT: torch.ones(64).double() * 2}, dropped=0.5), SLOT, torch.ones(64))
    ]
    found = hold_all(asked)
    assert [repr(one) for one in found] == [repr(hold(*one)) for one in asked]
    together = [one for one in asked if one.like is not None]
    assert len(asked) > len(together) > len(asked) / 3
    assert all(one.got.numel() <= MOST for one in together)


def test_torch_adds_a_row_up_as_it_does_alone() -> None:
    """What all of this rests on."""
    torch.manual_seed(7)
    for size in (1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 255, 256, 257, 1000, 1023, 2049, 4096):
        rows = torch.randn(max(2, 3000 // size), size, dtype=torch.float64).exp()
        alone = [row.clone() for row in rows]
        assert rows.sum(-1).tolist() == [row.sum().item() for row in alone]
        norm = torch.linalg.vector_norm
        assert norm(rows, dim=-1).tolist() == [norm(row).item() for row in alone]
        short = rows.to(torch.float32)
        told = [norm(row.to(torch.float32)).item() for row in alone]
        assert norm(short, dim=-1).tolist() == told
        beside = torch.stack([torch.dot(row, row) for row in rows.unbind()]).tolist()
        assert beside == [torch.dot(row, row).item() for row in alone]
