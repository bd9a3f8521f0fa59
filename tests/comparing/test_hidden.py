"""A few large elements hide what all others are off from a norm, and must not."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.measure.elements import farthest, usual_error
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.value import Value, dtype_named

MASSIVE = 2000.0


class Decoder(nn.Module):
    """A residual stream that has one massive activation, of which its norms make little."""

    def __init__(self, leaves_out: bool) -> None:
        super().__init__()
        self.leaves_out = leaves_out
        self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 8)
        with torch.no_grad():
            for norm in self.norms:
                assert isinstance(norm, nn.RMSNorm)
                norm.weight.fill_(MASSIVE / 5)
                norm.weight[3] = 0.01
            self.head.weight[:, 3] = 0

    def forward(self, x: Tensor) -> Tensor:
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            branch = F.silu(layer(norm(x)))
            x = x if self.leaves_out and number == 1 else x + branch
        out: Tensor = self.head(x)
        return out


def decoded(path: Path, leaves_out: bool = False, nudge: float = 1.0) -> Path:
    torch.manual_seed(0)
    model, x = Decoder(leaves_out).bfloat16(), torch.randn(4, 6, 32)
    x[..., 3] = MASSIVE
    with dumpcmp.capture(model, path), torch.no_grad():
        model((x * nudge).bfloat16())
    return path


def test_a_branch_that_is_left_out_is_found_beside_a_massive_activation(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(decoded(tmp_path / "a"), decoded(tmp_path / "b", leaves_out=True))
    assert not outcome.passed
    assert "add (call 1" in outcome.headline


def test_a_massive_activation_is_no_fault(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(decoded(tmp_path / "a"), decoded(tmp_path / "b"))
    assert outcome.passed


class Attention(nn.Module):
    """Attention with a mask that nobody computes here."""

    mask: Tensor

    def __init__(self, mask: Tensor, is_buffer: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 48)
        if is_buffer:
            self.register_buffer("mask", mask)
        else:
            self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        out: Tensor = (q @ k.mT / 2 + self.mask).softmax(-1) @ v
        return out


def sloped(slope: float, fill: float) -> Tensor:
    apart = (torch.arange(8)[None] - torch.arange(8)[:, None]).float()
    slopes = slope * torch.tensor([0.5, 0.25, 0.125, 0.0625])
    is_hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    return (apart * slopes[:, None, None]).masked_fill(is_hidden, fill)


def attended(tmp_path: Path, golden: Tensor, target: Tensor, is_buffer: bool) -> Outcome:
    for name, mask in (("golden", golden), ("target", target)):
        torch.manual_seed(0)
        model, x = Attention(mask, is_buffer), torch.randn(2, 8, 16)
        with dumpcmp.capture(model, tmp_path / name), torch.no_grad():
            model(x)
    return dumpcmp.compare(tmp_path / "golden", tmp_path / "target")


@pytest.mark.each_value_once
@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_other_slopes_are_found_beside_the_fill_of_a_mask(
    fill: float, is_buffer: bool, tmp_path: Path
) -> None:
    outcome = attended(tmp_path, sloped(1.0, fill), sloped(1.1, fill), is_buffer)
    assert not outcome.passed
    assert "an element is 0.0" in outcome.headline


@pytest.mark.parametrize("is_buffer", [True, False])
def test_an_ulp_of_a_mask_is_rounding(is_buffer: bool, tmp_path: Path) -> None:
    golden = sloped(1.0, -1e9)
    target = torch.where(golden > -1e8, golden * (1 + 2.0**-23), golden)
    assert attended(tmp_path, golden, target, is_buffer).passed


def value(numbers: list[float]) -> Value:
    return Value(dtype_named("float32"), np.array(numbers, np.float32))


def usual(ours: list[float], theirs: list[float]) -> float:
    golden, target = value(ours), value(theirs)
    return usual_error(golden, target, measure(golden, target).golden_rms)


def test_the_usual_error_is_that_of_what_differs() -> None:
    ours = [1e9] * 100 + [1.0] * 20
    assert usual(ours, [1e9] * 100 + [1.25] * 20) == pytest.approx(0.2)
    assert usual(ours, [1e9] * 100 + [1.25] * 3 + [1.0] * 17) == 0  # too few
    evenly = [1.0 + number / 8 for number in range(64)]
    assert usual(evenly, [2 * each for each in evenly]) == 0  # nothing hides it
    assert usual([0.0] * 64, [0.0] * 64) == 0
    assert usual([0.0] * 64, [1.0] * 64) == 0
    assert usual([], []) == 0


@pytest.mark.parametrize("place", [0, 12_345, (1 << 20) - 1])
def test_a_large_element_hides_others_wherever_it_stands(place: int) -> None:
    ours = np.ones(1 << 20, np.float32)
    theirs = ours * np.float32(1.25)
    ours[place] = theirs[place] = 1e9
    golden, target = (Value(dtype_named("float32"), bits) for bits in (ours, theirs))
    rms = measure(golden, target).golden_rms
    assert usual_error(golden, target, rms) == pytest.approx(0.2)


def test_the_farthest_element_is_held_against_small_ones() -> None:
    ours = [1e9] * 5 + [1.0] * 5
    assert farthest(value(ours), value([1e9] * 5 + [1.0] * 4 + [2.0])) == pytest.approx(0.5)
    assert farthest(value(ours), value(ours)) == 0
    assert farthest(value([0.0]), value([0.0])) == 0
