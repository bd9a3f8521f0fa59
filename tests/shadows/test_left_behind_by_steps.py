"""What a step leaves in buffers, objects and gradients is an effect, however it was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.shadows.proving import ProofAnswer
from tests.shadows.proved import prove

Way = Callable[["Kept", Tensor], object]


class Kept(nn.Module):
    """A layer and a running mean; `way` says what becomes of them."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.way = nn.Linear(8, 8), way
        self.mean: Tensor
        self.register_buffer("mean", torch.randn(8))

    def forward(self, x: Tensor) -> object:
        return self.way(self, x)


def dumped(path: Path, way: Way, steps: int = 1, trains: bool = False) -> Path:
    model = Kept(way)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with dumpcmp.capture(model, path, backward=trains), torch.set_grad_enabled(trains):
        for step in range(steps):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
            result = model(x)
            if trains:
                parts = result if isinstance(result, tuple) else (result,)
                sum(part.square().sum() for part in parts).backward()
                optimizer.step()
                optimizer.zero_grad()
    return path


def moved(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x) - parts.mean
    parts.mean.mul_(0.9).add_(x.mean(0) * 0.1)
    return y  # type: ignore[no-any-return]


def lerped(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x) - parts.mean
    parts.mean.lerp_(x.mean(0), 0.1)
    return y  # type: ignore[no-any-return]


def through_data(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x) - parts.mean
    parts.mean.data.mul_(0.9)
    parts.mean.data.add_(x.mean(0), alpha=0.1)
    return y  # type: ignore[no-any-return]


def other_momentum(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x) - parts.mean
    parts.mean.lerp_(x.mean(0), 0.2)
    return y  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("way", [lerped, through_data])
def test_buffers_that_are_left_the_same_show_what_they_are_made_of(
    tmp_path: Path, way: Way, steps: int
) -> None:
    paths = dumped(tmp_path / "d1", moved, steps), dumped(tmp_path / "d2", way, steps)
    for pair in (paths, paths[::-1]):
        outcome = dumpcmp.compare(*pair)
        assert outcome.exit_code == 0, outcome.word


def test_a_buffer_that_is_left_otherwise_is_another_program(tmp_path: Path) -> None:
    paths = dumped(tmp_path / "d1", moved), dumped(tmp_path / "d2", other_momentum)
    first = prove(*paths).first
    assert first is not None and first.answer is ProofAnswer.DIFFERENT_PROGRAM
    assert first.op.function in ("lerp", "mul", "add")
    assert dumpcmp.compare(*paths).exit_code == 1


def both(parts: Kept, x: Tensor) -> tuple[Tensor, Tensor]:
    y = parts.layer(x)
    return y, y.reshape(-1).tanh().mean()


def both_by_rows(parts: Kept, x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.stack([parts.layer(row) for row in x])
    return y, y.tanh().sum() / y.numel()


def test_what_is_used_inside_and_outside_has_a_gradient_of_both(tmp_path: Path) -> None:
    paths = (
        dumped(tmp_path / "d1", both, trains=True),
        dumped(tmp_path / "d2", both_by_rows, trains=True),
    )
    for pair in (paths, paths[::-1]):
        proof = prove(*pair)
        assert proof.answer is ProofAnswer.SAME, str(proof)


def halves(parts: Kept, x: Tensor) -> Tensor:
    weights, biases = parts.layer.weight.chunk(2), parts.layer.bias.chunk(2)
    return torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1)


def plain(parts: Kept, x: Tensor) -> Tensor:
    return parts.layer(x)  # type: ignore[no-any-return]


def test_weights_have_their_names_though_their_module_is_not_called(tmp_path: Path) -> None:
    paths = (
        dumped(tmp_path / "d1", halves, steps=2, trains=True),
        dumped(tmp_path / "d2", plain, steps=2, trains=True),
    )
    proof = prove(*paths)
    assert proof.answer is ProofAnswer.SAME and not proof.lone, str(proof)
    assert proof.num_effects == 2 * (1 + 2)


def stacked(parts: Kept, x: Tensor) -> Tensor:
    y = torch.stack([parts.layer(x), x.tanh()]).sum(0)
    return y.tanh() + y


def added(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x) + x.tanh()
    return y.tanh() + y  # type: ignore[no-any-return]


def test_a_gradient_that_goes_through_views_is_counted_once(tmp_path: Path) -> None:
    paths = (
        dumped(tmp_path / "d1", added, trains=True),
        dumped(tmp_path / "d2", stacked, trains=True),
    )
    proof = prove(*paths)
    assert proof.answer is ProofAnswer.SAME, str(proof)


def written(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x).clone()
    y[:, :4].mul_(2)
    return y.tanh()  # type: ignore[no-any-return]


def joined(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x)
    return torch.cat([y[:, :4] * 2, y[:, 4:]], -1).tanh()


def test_gradients_of_memory_that_was_written_to_are_never_another_program(tmp_path: Path) -> None:
    paths = (
        dumped(tmp_path / "d1", joined, trains=True),
        dumped(tmp_path / "d2", written, trains=True),
    )
    for pair in (paths, paths[::-1]):
        proof = prove(*pair)
        assert proof.answer in (ProofAnswer.SAME, ProofAnswer.UNKNOWN), str(proof)
        assert dumpcmp.compare(*pair).exit_code == 0


def centred(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x)
    return (y[:3] - y[:3].mean(0)).exp().log().mean(0)  # type: ignore[no-any-return]


def centred_by_sum(parts: Kept, x: Tensor) -> Tensor:
    y = parts.layer(x)
    return (y[:3] - y[:3].sum(0) / 3).exp().log().sum(0) / 3  # type: ignore[no-any-return]


def test_what_float64_leaves_of_terms_that_cancel_is_the_same(tmp_path: Path) -> None:
    paths = dumped(tmp_path / "d1", centred), dumped(tmp_path / "d2", centred_by_sum)
    proof = prove(*paths)
    assert proof.answer is ProofAnswer.SAME, str(proof)


class Packed(nn.Module):
    """Two layers, or one with the weights of both; of what the second gives the mean is taken."""

    def __init__(self, is_packed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        if is_packed:
            self.both = nn.Linear(8, 16)
            with torch.no_grad():
                self.both.weight.copy_(torch.cat([first.weight, second.weight]))
                self.both.bias.copy_(torch.cat([first.bias, second.bias]))
        else:
            self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "both"):
            y, z = self.both(x).chunk(2, -1)
        else:
            y, z = self.first(x), self.second(x)
        return y.tanh() + z - z.mean(0)  # type: ignore[no-any-return]


def test_gradients_of_packed_weights_are_those_of_their_parts(tmp_path: Path) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    for name, is_packed in (("d1", False), ("d2", True)):
        model = Packed(is_packed)
        with dumpcmp.capture(model, tmp_path / name, backward=True):
            model(x).square().sum().backward()
    for pair in (("d1", "d2"), ("d2", "d1")):
        proof = prove(*(tmp_path / name for name in pair))
        assert proof.answer is ProofAnswer.SAME and not proof.lone, str(proof)
