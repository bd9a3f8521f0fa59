"""Weights that lie on other ranks, or nowhere, between their uses, as ZeRO's third stage has it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.taps.distributed import ranks
from tests.choosing_cases import often

Rest = Callable[[Tensor, int], Tensor]  # what a rank holds of a weight while nobody uses it

REST: dict[str, Rest] = {
    "nothing": lambda whole, rank: torch.empty(0),
    "nothing, in as many dims": lambda whole, rank: torch.empty((0,) * whole.dim()),
    "all on the first": lambda whole, rank: whole if rank == 0 else whole[:0],
    "all on the last": lambda whole, rank: whole[:0] if rank == 0 else whole,
    "columns": lambda whole, rank: whole if rank == 0 else whole[..., :0],
    "flat": lambda whole, rank: whole.flatten() if rank == 0 else torch.empty(0),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def gathering(model: nn.Sequential, rank: int, rest: Rest) -> None:
    """Have each layer hold its weights whole only while it runs."""
    for layer in model:
        whole = {name: weight.detach().clone() for name, weight in layer.named_parameters()}

        def gather(layer: nn.Module, *_: Any, whole: dict[str, Tensor] = whole) -> None:
            for name, weight in layer.named_parameters():
                weight.data = whole[name]

        def release(layer: nn.Module, *_: Any, whole: dict[str, Tensor] = whole) -> None:
            for name, weight in layer.named_parameters():
                weight.data = rest(whole[name], rank)

        release(layer)
        layer.register_forward_pre_hook(gather)
        layer.register_forward_hook(release)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


@pytest.mark.parametrize("rest", often(REST, "nothing", "all on the last", "columns", "flat"))
def test_runs_with_empty_shards_are_compared(rest: str, tmp_path: Path) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    with dumpcmp.capture(golden := network(), tmp_path / "golden"), torch.no_grad():
        golden(x)
    for name in ("right", "wrong"):
        for rank, share in enumerate(x.chunk(2)):
            dumpcmp.set_rank(rank, 2)
            target = network()
            with torch.no_grad():
                target.get_parameter("2.bias")[1] += 0.5 * (name == "wrong")
            gathering(target, rank, REST[rest])
            with dumpcmp.capture(target, tmp_path / name), torch.no_grad():
                target(share)
    for sides in (("golden", "right"), ("right", "golden")):
        outcome = dumpcmp.compare(*(tmp_path / side for side in sides))
        assert outcome.exit_code == 0, outcome
        assert not outcome.failures
    assert dumpcmp.compare(tmp_path / "golden", tmp_path / "wrong").exit_code == 1
