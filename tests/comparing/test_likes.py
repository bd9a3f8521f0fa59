"""Values that fit no layout lie as their likes in other layers do, and are then wrong by that."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.taps.distributed import ranks

WIDTH, HEADS = 16, 4


class Heads(nn.Linear):
    """A projection whose heads one fault puts into another order."""

    is_rolled = False

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        heads = out.view(*out.shape[:-1], -1, WIDTH // HEADS)
        return heads.roll(1, -2).flatten(-2) if self.is_rolled else out


class Router(nn.Linear):
    """The best of some choices, which one fault counts from one."""

    is_shifted = False

    def forward(self, x: Tensor) -> Tensor:
        best = super().forward(x).argmax(-1)
        return (best + 1) % 4 if self.is_shifted else best


class Layer(nn.Module):
    """Heads, of which a rank may have some, that are chosen among and put together."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.keys = Router(WIDTH, 4), Heads(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = self.router(x)[..., None]
        return torch.tanh(self.keys(x)) * (1 + chosen)


class Model(nn.Module):
    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.keys.weight.data = layer.keys.weight.data.chunk(size)[rank].clone()
            assert layer.keys.bias is not None
            layer.keys.bias.data = layer.keys.bias.data.chunk(size)[rank].clone()

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x * n) for n, layer in enumerate(self.layers, 1)]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


@pytest.mark.parametrize(
    "fault, op, told",
    [
        ("keys", "layers.1.keys", "golden has nothing like it"),
        ("router", "layers.1", "wrong: rank"),  # where its integers become gates
    ],
)
def test_a_module_that_gives_what_its_likes_do_not_is_named(
    tmp_path: Path, fault: str, op: str, told: str
) -> None:
    x = torch.randn(3, 8, WIDTH, generator=torch.Generator().manual_seed(1))
    with dumpcmp.capture(golden := Model(), tmp_path / "golden"), torch.no_grad():
        golden(x)
    for rank in range(2):
        dumpcmp.set_rank(rank, 2)
        target = Model(rank, 2)
        wrong = target.get_submodule(f"layers.1.{fault}")
        if fault == "keys":
            wrong.is_rolled = True  # type: ignore[assignment]
        elif rank == 1:
            wrong.is_shifted = True  # type: ignore[assignment]
        with dumpcmp.capture(target, tmp_path / "target"), torch.no_grad():
            target(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None
    assert first.key.op.module == op and told in first.reason
    assert not [row for row in outcome.failures if row.key.op.startswith("layers.0")]
