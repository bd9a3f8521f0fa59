"""Where a comparison computes makes no difference to what it finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.comparing import placing
from dumpcmp.nouns.outcome import Outcome

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu:0", pytest.param("cuda", marks=GPU)]


class Net(nn.Module):
    """A little of each kind: a product, a norm, a softmax, a choice, an index, a residual."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        inner = nn.functional.gelu(self.up(self.norm(x)))
        if self.way != "golden":  # another right way to compute the same
            w = self.down.weight
            inner = inner.clone()
            out = inner[..., :24] @ w[:, :24].T + inner[..., 24:] @ w[:, 24:].T + self.down.bias
        else:
            out = self.down(inner)
        scores = torch.softmax(out, -1) * (1.02 if self.way == "wrong" else 1.0)
        best = scores.topk(2, -1).indices
        found: Tensor = x + scores * torch.gather(scores, -1, best).sum(-1, keepdim=True)
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    room = tmp_path_factory.mktemp("runs")
    for way in ("golden", "other", "wrong"):
        torch.manual_seed(0)
        net = Net(way).to(torch.bfloat16)
        with dumpcmp.capture(net, room / way, backward=True):
            net(torch.arange(24).view(2, 12)).float().square().mean().backward()
    return {way: room / way for way in ("golden", "other", "wrong")}


def told(outcome: Outcome) -> list[tuple[str, str, str, bool]]:
    return [(str(row.key), row.verdict, row.origin, row.root) for row in outcome.rows]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["golden", "other", "wrong"])
def test_verdicts_are_the_same_on_every_device(
    device: str, way: str, runs: dict[str, Path]
) -> None:
    here = dumpcmp.compare(runs["golden"], runs[way])
    there = dumpcmp.compare(runs["golden"], runs[way], device=device)
    assert told(here) == told(there) and here.exit_code == there.exit_code
    assert (here.exit_code == 0) == (way != "wrong"), here.headline


def test_threads_find_what_one_finds(runs: dict[str, Path]) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = dumpcmp.compare(runs["golden"], runs["wrong"], executor=threads)
    assert told(found) == told(dumpcmp.compare(runs["golden"], runs["wrong"]))


def test_what_is_large_is_shared_by_threads_and_the_same_is_found(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dumpcmp.compare(runs["golden"], runs["wrong"], replay="off")
    monkeypatch.setattr(placing, "_LARGE", 0)
    found = dumpcmp.compare(runs["golden"], runs["wrong"], replay="off", jobs=3)
    assert repr(list(found.rows)) == repr(list(expected.rows))


@pytest.mark.parametrize("device, hint", [("tpu", "valid are"), ("cuda:99", "leave it out")])
def test_a_device_that_is_not_there_is_refused(
    device: str, hint: str, runs: dict[str, Path]
) -> None:
    with pytest.raises(dumpcmp.DumpcmpError, match=device) as refused:
        dumpcmp.compare(runs["golden"], runs["other"], device=device)
    assert hint in str(refused.value.hint)
