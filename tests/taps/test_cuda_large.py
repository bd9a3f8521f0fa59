"""A model of real size on a GPU: more than 20 GB of activations, dumped twice and compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dumpcmp
from dumpcmp import Archive
from dumpcmp.dumping.retention import Retention

WIDTH, HEADS, LAYERS, TOKENS = 4096, 32, 5, 8192
NBYTES = 20_000_000_000
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Layer(nn.Module):
    """One layer of a decoder with eight billion parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 14336, bias=False) for _ in range(2))
        self.down = nn.Linear(14336, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        down: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + down


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A directory that is emptied afterwards: pytest keeps those of three runs."""
    if shutil.disk_usage(tmp_path).free < 2.4 * NBYTES:
        pytest.skip(f"needs {2.4 * NBYTES / 1e9:.0f} GB of disk")
    yield tmp_path
    for path in tmp_path.iterdir():
        shutil.rmtree(path)


def test_a_model_of_real_size_is_dumped_and_compared(room: Path) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16().eval()
        x = torch.randn(4, TOKENS // 4, WIDTH, dtype=torch.bfloat16)
    for path, buffer in (("one", None), ("two", 16 << 30)):
        keep = Retention(buffer=buffer)
        with torch.no_grad(), dumpcmp.capture(model, room / path, io="output", keep=keep):
            for _ in range(2):
                plain = model(x)
    archive = Archive(room / "one")
    assert archive.complete
    assert sum(r.location.nbytes for r in archive.values() if r.location and not r.same_as) > NBYTES
    found = archive[dumpcmp.Key("Sequential", 1, "<root>", 0, "output.0")]
    assert archive.load(found).bits.tobytes() == bytes(plain.cpu().view(torch.uint8).numpy())
    outcome = dumpcmp.compare(room / "one", room / "two")
    assert outcome.first_divergence is None
    assert all(row.metrics.equal for row in outcome.rows if row.metrics)
