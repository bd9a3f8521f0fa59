"""Measuring on a device gives the numbers that measuring gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dumpcmp.measure.metrics import measure
from dumpcmp.measure.on_device import measure_on
from dumpcmp.nouns.row import Metrics
from dumpcmp.nouns.value import value_of

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def spoilt(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[[1, 7, 9]] = torch.tensor([math.nan, math.inf, -math.inf]).to(tensor.dtype)
    return tensor


def pairs() -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(6, 40, 33)
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        near = (x * (1 + 1e-3 * torch.randn_like(x))).to(dtype)
        found[f"{dtype}"] = x.to(dtype), near
        found[f"{dtype}, nan"] = spoilt(x.to(dtype)), spoilt(near)
    found["mean far from zero"] = x + 500, x + 500 + 0.01 * torch.randn_like(x)
    found["other dtype"] = x, x.bfloat16()
    found["zeros"] = torch.zeros(3, 70), torch.zeros(3, 70).index_fill(1, torch.tensor([5]), 1.0)
    found["equal"] = x, x.clone()
    found["one element"] = torch.tensor(2.0), torch.tensor(2.5)
    found["huge"] = x.double() * 1e200, x.double() * 1.01e200
    found["integers"] = torch.arange(9), torch.arange(9).flip(0)
    return found


def numbers(metrics: Metrics) -> dict[str, Any]:
    return metrics._asdict()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", pairs())
def test_a_device_measures_what_the_cpu_does(name: str, device: str) -> None:
    golden, target = map(value_of, pairs()[name])
    here, there = numbers(measure(golden, target)), numbers(measure_on(device, golden, target))
    for word, known in here.items():
        if isinstance(known, float):
            assert there[word] == pytest.approx(known, rel=2e-5, abs=1e-9, nan_ok=True), word
        elif word not in ("golden", "target"):
            assert there[word] == known, word
    for side in ("golden", "target"):
        for word, known in numbers(here[side]).items():
            near = pytest.approx(known, rel=2e-5, abs=1e-6, nan_ok=True)
            assert numbers(there[side])[word] == near, word
