"""Integers are not rounded: where they differ and nobody chose otherwise, something is wrong."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp


class Counting(nn.Module):
    """Counts in one dtype or another: 200 + 100 wraps around in bytes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) * 200 + 100


@pytest.mark.parametrize("count, exit_code", [(1, 1), (0, 0)])
def test_integers_of_another_dtype_are_the_same_only_if_their_numbers_are(
    count: int, exit_code: int, tmp_path: Path
) -> None:
    for name, dtype in (("golden", torch.uint8), ("mine", torch.int64)):
        model = Counting(dtype)
        with dumpcmp.capture(model, tmp_path / name):
            model(torch.full((2, 3), count, dtype=torch.uint8))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.exit_code == exit_code, outcome.headline
