"""Training on the CPU against the same on a GPU, with torch's own settings: TF32 where it may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Conclusion
from dumpcmp.nouns.effects import Effect

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Images(nn.Module):
    """Convolutions with batch norms, in place and across."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.second, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(self.stem(x)), inplace=True)
        x = F.relu(x + self.second(self.deep(x)), inplace=True)
        y: Tensor = self.head(x.mean((2, 3)))
        return y


class Words(nn.Module):
    """A layer of attention, or a recurrent one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(50, 32), layer, nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layer(self.embed(ids))
        y: Tensor = self.head(x[0] if isinstance(x, tuple) else x)
        return y


def images() -> tuple[nn.Module, Tensor]:
    return Images(), torch.randn(4, 3, 12, 12)


def words(make: Callable[..., nn.Module], *args: Any, **options: Any) -> tuple[nn.Module, Tensor]:
    return Words(make(32, *args, batch_first=True, **options)), torch.randint(0, 50, (3, 12))


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "images": images,
    "attention": lambda: words(nn.TransformerEncoderLayer, 4, 64, dropout=0.0),
    "lstm": lambda: words(nn.LSTM, 32),
    "gru": lambda: words(nn.GRU, 32),
}
# In aten's ops a recurrent layer is one on a GPU, and hundreds on a CPU.
WAYS = [(name, mode) for name in CASES for mode in ("eager", "aten")]
WAYS = [way for way in WAYS if way not in (("lstm", "aten"), ("gru", "aten"))]


def trained(path: Path, name: str, mode: str, device: str, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model, x = CASES[name]()
    model, x = model.to(device), x.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dumpcmp.capture(model, path, mode=mode, backward=True):
        for step in range(3):
            out = model(x)
            seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(step))
            out.backward(seed.to(device))
            optimizer.param_groups[0]["lr"] = 0.01 * (factor if step == 1 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize(("name", "mode"), WAYS)
def test_training_is_the_same_and_another_rate_is_named(
    name: str, mode: str, tmp_path: Path
) -> None:
    golden = trained(tmp_path / "c", name, mode, "cpu")
    sound = dumpcmp.compare(golden, trained(tmp_path / "g", name, mode, "cuda"))
    assert sound.conclusion is Conclusion.SAME, sound.text()
    faster = trained(tmp_path / "f", name, mode, "cuda", factor=1.05)
    outcome = dumpcmp.compare(golden, faster)
    assert outcome.exit_code == 1 and outcome.first_divergence is not None
    key = outcome.first_divergence.key
    assert key.op == Effect.TRAINING.op and key.step == 1, outcome.headline
    assert "['lr'] is 0.01 in golden, 0.0105 in mine" in outcome.headline
