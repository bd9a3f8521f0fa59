"""Programs that compute the same in another form: one place does not make one value."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dumpcmp
from dumpcmp import Outcome

Body = Callable[[Tensor], Tensor]


class Doing(nn.Module):
    """A linear layer, and what `body` makes of it."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(32, 32), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x))


def compared(room: Path, golden: Body, target: Body) -> Outcome:
    for name, body in (("golden", golden), ("target", target)):
        torch.manual_seed(0)
        model, x = Doing(body), torch.randn(2, 12, 32)
        with dumpcmp.capture(model, room / name), torch.no_grad():
            model(x)
    return dumpcmp.compare(room / "golden", room / "target")


def angles(y: Tensor) -> Tensor:
    speeds = 1.0 / (10000 ** (torch.arange(0, 32, 2) / 32))
    return torch.outer(torch.arange(y.shape[1]).float(), speeds)


def turned_as_complex(y: Tensor) -> Tensor:
    turns = torch.polar(torch.ones(12, 16), angles(y))
    return torch.view_as_real(torch.view_as_complex(y.reshape(2, 12, 16, 2)) * turns).flatten(2)


def turned(y: Tensor, times: float = 1.0, sign: int = 1) -> Tensor:
    even, odd, cos, sin = y[..., 0::2], y[..., 1::2], angles(y).cos() * times, angles(y).sin()
    return torch.stack([even * cos - odd * sin, sign * even * sin + odd * cos], -1).flatten(2)


def test_complex_arithmetic_may_be_done_in_real_parts(tmp_path: Path) -> None:
    outcome = compared(tmp_path, turned_as_complex, turned)
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline
    again = dumpcmp.compare(tmp_path / "target", tmp_path / "golden")
    assert again.conclusion is dumpcmp.Conclusion.SAME, again.headline


@pytest.mark.parametrize(
    "wrong", [lambda y: turned(y, times=1.00002), lambda y: turned(y, sign=-1), lambda y: y]
)
def test_what_is_wrong_in_real_parts_is_found(wrong: Body, tmp_path: Path) -> None:
    outcome = compared(tmp_path, turned_as_complex, wrong)
    assert outcome.exit_code == 1, outcome.headline


def test_the_real_part_is_not_the_whole(tmp_path: Path) -> None:
    outcome = compared(tmp_path, torch.fft.fft, lambda y: torch.fft.fft(y).real)
    assert outcome.conclusion is dumpcmp.Conclusion.PROGRAM, outcome.headline


def slopes_by_powers(fill: float) -> Body:
    """A bias for each distance, of slopes that are powers; what lies ahead is filled."""

    def body(y: Tensor) -> Tensor:
        slopes = torch.pow(torch.tensor(2.0), -torch.arange(1, 3).float())[:, None, None]
        places = torch.arange(12)
        bias = (places[None] - places[:, None]).float() * slopes
        ahead = torch.ones(12, 12, dtype=torch.bool).triu(1)
        return attended(y, bias.masked_fill(ahead, fill))

    return body


def slopes_by_exponentials(fill: float, rate: float = math.log(2)) -> Body:
    """The same in another form, which has a tensor of what it fills with, and of nothing else."""

    def body(y: Tensor) -> Tensor:
        slopes = torch.exp(torch.linspace(-1, -2, 2) * rate)
        shares = torch.einsum("h,i->hi", slopes, torch.arange(12, dtype=torch.float32))
        bias = shares[:, None, :] - shares[:, :, None]
        behind = torch.ones(12, 12, dtype=torch.bool).tril()
        return attended(y, torch.where(behind, bias, torch.tensor(fill)))

    return body


def attended(y: Tensor, mask: Tensor) -> Tensor:
    q = y.reshape(2, 12, 2, 16).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("fill", [-1e9, -math.inf])
def test_a_constant_in_anothers_place_may_be_golden_s_number_elsewhere(
    fill: float, tmp_path: Path
) -> None:
    outcome = compared(tmp_path, slopes_by_powers(fill), slopes_by_exponentials(fill))
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline
    again = dumpcmp.compare(tmp_path / "target", tmp_path / "golden")
    assert again.conclusion is dumpcmp.Conclusion.SAME, again.headline


@pytest.mark.parametrize("golden, target, rate", [(-1e9, -1e9, 0.8), (-1e9, -10.0, math.log(2))])
def test_what_is_computed_otherwise_beside_it_is_found(
    golden: float, target: float, rate: float, tmp_path: Path
) -> None:
    wrong = slopes_by_exponentials(target, rate)
    assert not compared(tmp_path, slopes_by_powers(golden), wrong).passed


def added(number: float) -> Body:
    return lambda y: torch.rsqrt(y.square() + torch.tensor(number)) * torch.tensor(1e-6)


def swapped(y: Tensor) -> Tensor:
    return torch.rsqrt(y.square() + torch.tensor(1e-6)) * torch.tensor(1e-5)


@pytest.mark.parametrize("target", [added(1e-7), added(1.001e-5)])
def test_another_constant_is_another_program(target: Body, tmp_path: Path) -> None:
    outcome = compared(tmp_path, added(1e-5), target)
    assert outcome.conclusion is dumpcmp.Conclusion.PROGRAM, outcome.headline
    assert "is not the same constant" in outcome.headline


@pytest.mark.parametrize("target", [added(1e-6), swapped])
def test_a_constant_in_the_wrong_place_is_found(target: Body, tmp_path: Path) -> None:
    assert not compared(tmp_path, added(1e-5), target).passed


class Attending(nn.Module):
    def forward(self, y: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        weights = (y @ keys.transpose(1, 2) + mask).softmax(-1)
        return weights @ keys, weights


class Padding(nn.Module):
    """Attends to its keys, or puts them into room for more, of which `seen` are not masked."""

    def __init__(self, seen: int | None) -> None:
        super().__init__()
        self.first, self.attend, self.seen = nn.Linear(32, 32), Attending(), seen

    def forward(self, x: Tensor) -> Tensor:
        y = keys = self.first(x)
        mask = torch.zeros(12, 12)
        if self.seen is not None:
            keys = torch.zeros(2, 16, 32).index_copy(1, torch.arange(12), y)
            mask = torch.where(torch.arange(16) < self.seen, 0.0, -math.inf).expand(12, -1)
        attended: Tensor = self.attend(y, keys, mask)[0]
        return attended


class Bagging(nn.Module):
    """Takes the means of bags, as rows of one matrix, or one after the other from `offset` on."""

    def __init__(self, offset: int | None) -> None:
        super().__init__()
        self.bag, self.last, self.offset = nn.EmbeddingBag(40, 8), nn.Linear(8, 3), offset

    def forward(self, x: Tensor) -> Tensor:
        bags = x.argsort(-1)
        if self.offset is None:
            means = self.bag(bags)
        else:
            begins = (torch.arange(0, bags.numel(), bags.shape[-1]) + self.offset).clamp_min(0)
            means = self.bag(bags.flatten(), begins)
        found: Tensor = self.last(means)
        return found


def run_both(room: Path, golden: nn.Module, target: nn.Module, *shape: int) -> Outcome:
    torch.manual_seed(0)
    x = torch.randn(shape)
    for parameter, other in zip(golden.parameters(), target.parameters(), strict=True):
        other.data.copy_(parameter)
    for name, model in (("golden", golden), ("target", target)):
        with dumpcmp.capture(model, room / name), torch.no_grad():
            model(x)
    return dumpcmp.compare(room / "golden", room / "target")


def test_what_is_given_in_another_shape_is_judged_by_what_is_made_of_it(tmp_path: Path) -> None:
    padded = run_both(tmp_path / "padded", Padding(None), Padding(12), 2, 12, 32)
    assert padded.conclusion is dumpcmp.Conclusion.SAME, padded.headline
    flat = run_both(tmp_path / "flat", Bagging(None), Bagging(0), 4, 5)
    assert flat.conclusion is dumpcmp.Conclusion.SAME, flat.headline


@pytest.mark.parametrize("seen", [11, 13])
def test_a_wrong_mask_of_another_shape_is_found(seen: int, tmp_path: Path) -> None:
    outcome = run_both(tmp_path, Padding(None), Padding(seen), 2, 12, 32)
    assert outcome.conclusion is dumpcmp.Conclusion.PROGRAM, outcome.headline


def test_wrong_offsets_of_bags_are_found(tmp_path: Path) -> None:
    assert not run_both(tmp_path, Bagging(None), Bagging(-1), 4, 5).passed


def test_a_result_of_another_shape_is_none(tmp_path: Path) -> None:
    assert not compared(tmp_path, lambda y: y, lambda y: y.flatten(1)).passed
