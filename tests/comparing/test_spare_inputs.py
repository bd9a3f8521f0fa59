"""Inputs that other kernels do not have: ops are run again without them, and give the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.comparing.spare_inputs import needs, without_spare_inputs
from dumpcmp.nouns.record import Call
from dumpcmp.replay.running import rerun


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.norm(x).reshape(2, 8, 2, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> dumpcmp.Archive:
    path: Path = tmp_path_factory.mktemp("spare") / "d"
    torch.manual_seed(0)
    model, x = Net(), torch.randn(16, 16, requires_grad=True)
    with dumpcmp.capture(model, path, mode="aten", backward=True):
        model(x).square().sum().backward()
    return dumpcmp.Archive(path)


@pytest.mark.parametrize(
    ("name", "spare"), [("batch_norm_backward", {"3", "4"}), ("attention_for_cpu_back", {"4", "5"})]
)
def test_the_same_comes_out_without_them(
    name: str, spare: set[str], archive: dumpcmp.Archive
) -> None:
    (site,) = (site for site in archive.calls if name in site.op)
    call = archive.calls[site]
    flow: Any = SimpleNamespace(calls={site: ()}, golden=SimpleNamespace(calls={site: call}))
    (short,) = without_spare_inputs(flow).values()
    inputs = [key for key in archive if key.site == site and key.slot.is_input]
    assert {key.slot.name for key in inputs if not needs(short, key)} == spare
    assert all(needs(call, key) for key in inputs)

    def given(call: Call) -> dict[str, Tensor]:
        wanted = [key for key in inputs if needs(call, key)]
        return {str(k.slot): archive.tensor(k.op, step=0, slot=k.slot) for k in wanted}

    whole, again = rerun(call, given(call)), rerun(short, given(short))
    assert again.outputs.keys() == whole.outputs.keys()
    assert all(torch.equal(again.outputs[slot], whole.outputs[slot]) for slot in again.outputs)
