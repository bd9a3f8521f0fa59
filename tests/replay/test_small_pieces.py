"""Few elements are held against their replay by numpy, to the bit as torch would."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from dumpcmp.nouns.replay import Replay
from dumpcmp.replay import holding
from dumpcmp.replay.rating import Rerun
from dumpcmp.replay.small_pieces import is_small

SHAPES = [(), (1,), (7,), (3, 5), (1, 20, 32), (2, 3, 4, 9), (64, 33), (65, 64)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def by_torch(rerun: Rerun, got: torch.Tensor, patch: pytest.MonkeyPatch) -> Replay:
    with patch.context() as patched:
        patched.setattr(holding, "is_small", lambda *_: False)
        return holding.hold(rerun, "output.0", got)


@pytest.mark.each_value_once
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_and_torch_hold_alike(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(len(shape))
    held = 0
    for size, error, has_terms, turned, odd in product(
        (1e-30, 1.0, 1e18), (0.0, 1e-8, 1e-3), (False, True), (False, True), (0.0, math.inf)
    ):
        known = torch.randn(shape, dtype=torch.float64) * size
        known = known.transpose(0, -1) if turned and shape else known
        known = known * (torch.rand(known.shape) > 0.1)
        got = (known * (1 + error * torch.randn(known.shape, dtype=torch.float64))).to(dtype)
        got = torch.where(torch.rand(got.shape) > 0.9, odd, got) if odd else got
        terms = {"output.0": (3 * known.abs()).to(torch.float32)} if has_terms else {}
        rerun = Rerun(
            {"output.0": known},
            {"output.0": 3.7},
            terms=terms,
            is_pointwise=turned,
            is_nearest=True,
        )
        found = holding.hold(rerun, "output.0", got)
        assert repr(found) == repr(by_torch(rerun, got, monkeypatch))
        held += is_small(known, got)
    assert bool(held) == (dtype != torch.bfloat16 and math.prod(shape) <= 1 << 12)
