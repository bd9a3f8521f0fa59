"""Batch norms that cudnn computes: an op of their own, which follows its moments all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import _scoped_library

import dumpcmp
from dumpcmp import Conclusion


def norm(*args: Any) -> tuple[Tensor, ...]:
    return (*torch.ops.aten.native_batch_norm(*args), torch.empty(0, dtype=torch.uint8))


def norm_backward(
    x: Tensor, grad: Tensor, weight: Tensor, *moments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *saved, eps, _ = moments
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, *saved, True, eps, [True] * 3
    )
    return found


class CudnnNorm(nn.BatchNorm2d):
    """What a batch norm is on a GPU, as the CPU is made to compute it here."""

    factor = 0.1

    def forward(self, x: Tensor) -> Tensor:
        moments = self.running_mean, self.running_var
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        given = (x, self.weight, self.bias, *moments, True, self.factor, self.eps)
        return torch.cudnn_batch_norm(*given)[0]


class OtherNorm(CudnnNorm):
    factor = 0.2


def trained(path: Path, kind: type[nn.BatchNorm2d]) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rounds_otherwise = torch.backends.mkldnn.flags(enabled=kind is nn.BatchNorm2d)
    with rounds_otherwise, dumpcmp.capture(model, path, mode="aten", backward=True):
        for _ in range(2):
            model(torch.randn(4, 3, 6, 6)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("kind", [CudnnNorm, OtherNorm])
def test_moments_of_cudnn_are_followed(kind: type[nn.BatchNorm2d], tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", nn.BatchNorm2d)
    with _scoped_library("aten", "IMPL") as library:
        library.impl("cudnn_batch_norm", norm, "CPU")
        library.impl("cudnn_batch_norm_backward", norm_backward, "CPU")
        outcome = dumpcmp.compare(golden, trained(tmp_path / "target", kind))
    if kind is CudnnNorm:
        assert outcome.conclusion is Conclusion.SAME, outcome.text()
    else:
        assert outcome.exit_code == 1 and "batch_norm" in outcome.headline, outcome.headline
