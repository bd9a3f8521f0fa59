"""A model whose modules lie on several devices compares with one that lies on one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive, Retention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICES = ["cpu", "cuda:0", "cpu", f"cuda:{torch.cuda.device_count() - 1}"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * mask
        return y


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block() for _ in DEVICES)
        self.head = nn.Linear(16, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x, mask = self.embed(ids), (ids > 0).unsqueeze(-1).float()
        for block in self.blocks:
            x = block(x, mask)
        y: Tensor = self.head(x)
        return y


def moved(device: str, values: Any) -> Any:
    return tuple(each.to(device) for each in values)


def by_hooks(module: nn.Module, device: str) -> None:
    """Inputs are moved by a hook of the module's."""
    module.register_forward_pre_hook(lambda _, args: moved(device, args))


def by_forward(module: nn.Module, device: str) -> None:
    """Inputs are moved by what stands in for the module's `forward`."""
    inner = module.forward
    module.forward = lambda *args: inner(*moved(device, args))


def spread(moving: Callable[[nn.Module, str], None]) -> Stack:
    torch.manual_seed(0)
    stack = Stack()
    for block, device in zip(stack.blocks, DEVICES, strict=True):
        block.to(device)
        moving(block, device)
    moving(stack.head, "cpu")
    return stack


def whole(device: str) -> Stack:
    torch.manual_seed(0)
    return Stack().to(device)


def dumped(model: Stack, ids: Tensor, path: Path, **kept: Any) -> list[Tensor]:
    results = []
    with dumpcmp.capture(model, path, backward=True, **kept):
        for _ in range(3):
            model.zero_grad()
            results.append(model(ids))
            results[-1].square().mean().backward()
    return results


IDS = torch.arange(24).view(2, 12)
KEPT: list[dict[str, Any]] = [
    {},
    {"level": "modules"},
    {"mode": "aten"},
    {"keep": Retention("summary", checksum=True)},
    {"sample_rows": 4},
]


@pytest.mark.parametrize("kept", KEPT, ids=["functions", "modules", "aten", "summary", "rows"])
@pytest.mark.parametrize("moving", [by_hooks, by_forward])
def test_several_devices_compare_with_one(
    moving: Callable[[nn.Module, str], None], kept: dict[str, Any], tmp_path: Path
) -> None:
    several = spread(moving)
    before = several(IDS)
    results = dumped(several, IDS, tmp_path / "several", **kept)
    assert all(torch.equal(before, each) for each in results)
    dumped(whole("cpu"), IDS, tmp_path / "cpu", **kept)
    dumped(whole("cuda"), IDS.cuda(), tmp_path / "cuda", **kept)
    archive = Archive(tmp_path / "several")
    for number, device in enumerate(DEVICES):
        within = [key for key in archive if str(key.op) == f"blocks.{number}"]
        outputs = [key for key in within if key.slot == "output.0"]
        assert outputs and {archive[key].device for key in outputs} == {device}
    for one in "cpu", "cuda":
        outcome = dumpcmp.compare(tmp_path / one, tmp_path / "several")
        assert outcome.passed and not outcome.missing, f"{one}: {outcome}"


@pytest.mark.parametrize("wrong", range(len(DEVICES)))
def test_a_fault_is_found_on_whichever_device(wrong: int, tmp_path: Path) -> None:
    dumped(whole("cpu"), IDS, tmp_path / "one")
    several = spread(by_hooks)
    block: Any = several.blocks[wrong]
    with torch.no_grad():
        block.up.bias += 0.05
    inner = block.up.forward
    block.up.forward = lambda x: inner(x) - 0.04  # the weights are as they were, the op is not
    dumped(several, IDS, tmp_path / "several")
    root = dumpcmp.compare(tmp_path / "one", tmp_path / "several").first_divergence
    assert root is not None and root.key.op.module == f"blocks.{wrong}.up", root
