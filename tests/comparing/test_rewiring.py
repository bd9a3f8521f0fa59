"""Values that golden has twice, and helpers that one side alone has: neither is a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.faults import Fault, on_output, planted
from dumpcmp.nouns.row import Verdict


class Twice(nn.Module):
    """Takes the same part of its input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        one, other = x[:, 0], x[:, 0]
        found: Tensor = self.first(one) + self.second(other)
        return found


def shifted(out: Tensor) -> None:
    out.copy_(out.roll(1, 0))


@pytest.mark.parametrize("call", [0, 1])
def test_a_wrong_part_is_the_only_root_though_golden_took_it_twice(
    call: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, x = Twice(), torch.randn(4, 3, 8)
    with dumpcmp.capture(net, tmp_path / "g"):
        net(x)
    fault = Fault("shifted", "", "getitem", on_output(shifted), call)
    with planted(net, fault), dumpcmp.capture(net, tmp_path / "t"):
        net(x)
    outcome = dumpcmp.compare(tmp_path / "g", tmp_path / "t")
    assert [(row.key.op, row.key.call) for row in outcome.roots] == [("<root>/getitem", call)]


class Counting(nn.Module):
    """Counts in floats, or in integers: a helper that one kind of device needs."""

    def __init__(self, cast: str) -> None:
        super().__init__()
        self.cast = cast

    def forward(self, ids: Tensor) -> Tensor:
        counts: Tensor = getattr(ids, self.cast)().cumsum(0)
        return counts.to(torch.int32) * 2


@pytest.mark.parametrize("ids, code", [([0, 1, 1, 3, 0, 2], 0), ([0, 1, 1, 3, 0, 1], 1)])
def test_a_cast_on_one_side_alone_is_covered_by_what_agrees_after_it(
    ids: list[int], code: int, tmp_path: Path
) -> None:
    def dumped(name: str, cast: str, given: list[int]) -> Any:
        net = Counting(cast)
        with dumpcmp.capture(net, tmp_path / name):
            net(torch.tensor(given))
        return tmp_path / name

    golden = dumped("g", "float", [0, 1, 1, 3, 0, 2])
    outcome = dumpcmp.compare(golden, dumped("t", "int", ids))
    assert outcome.exit_code == code, outcome.headline
    alone = {row.verdict for row in outcome.rows if not (row.golden_key and row.target_key)}
    assert code or alone <= {Verdict.COVERED}
