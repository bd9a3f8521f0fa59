"""Weights without modules of their own are found: experts in a stack, tensors of functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp

WIDTH, INNER, EXPERTS = 8, 12, 3


class Golden(nn.Module):
    """Experts that are modules, of whose outputs the mean is taken, between two projections."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        sizes = {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
        self.experts = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.q(x)) * self.k(x)
        given = [e["down"](F.silu(e["gate"](x)) * e["up"](x)) for e in self.experts]  # type: ignore[index]
        out: Tensor = self.out(torch.stack(given).mean(0))
        return out


class Port(nn.Module):
    """The same of plain tensors and stacked parameters, with q and k in one, and gate and up."""

    def __init__(self, golden: Golden, fault: bool = False) -> None:
        super().__init__()
        w = golden.state_dict()
        self.qk, self.last = torch.cat((w["q.weight"], w["k.weight"])), w["out.weight"].clone()
        both = [torch.cat((w[f"experts.{n}.gate.weight"], w[f"experts.{n}.up.weight"]))
                for n in range(EXPERTS)]  # fmt: skip
        self.w13 = nn.Parameter(torch.stack(both).transpose(1, 2).contiguous())
        down = [w[f"experts.{n}.down.weight"] for n in range(EXPERTS)]
        self.w2 = nn.Parameter(torch.stack(down).transpose(1, 2).contiguous())
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.linear(x, self.qk).chunk(2, -1)
        x = torch.tanh(k) * q if self.fault else torch.tanh(q) * k
        gate, up = torch.bmm(x.expand(EXPERTS, -1, -1), self.w13).chunk(2, -1)
        return F.linear(torch.bmm(F.silu(gate) * up, self.w2).mean(0), self.last)


def dumped(room: Path, fault: bool = False) -> tuple[Path, Path]:
    golden = Golden()
    x = torch.randn(6, WIDTH)
    for name, model in (("d1", golden), ("d2", Port(golden, fault))):
        with torch.no_grad(), dumpcmp.capture(model, room / name):
            model(x)
    return room / "d1", room / "d2"


LINES = [
    '"out#0/param.weight": "<root>/linear#1/input.1"',
    '"{q,k}#0/output.0": "<root>/linear#0/output.0"',
    '"experts.{0,1,2}.down#0/param.weight": "<root>#0/param.w2"',
]


@pytest.mark.parametrize("fault", [False, True])
def test_the_proposal_pairs_what_has_no_modules(tmp_path: Path, fault: bool) -> None:
    paths = dumped(tmp_path, fault)
    proposal = dumpcmp.propose_mapping(*paths)
    text = proposal.text()
    assert [line for line in LINES if line not in text] == []
    assert "6 pieces in one" in text  # gate and up of each expert, in one parameter
    for golden, target in (paths, paths[::-1]):
        mapping = dumpcmp.propose_mapping(golden, target).write(tmp_path / f"{golden.name}.yaml")
        outcome = dumpcmp.compare(golden, target, mapping=mapping)
        assert outcome.exit_code == int(fault)
        weights = [r for r in outcome.rows if r.key.slot.is_weight and r.verdict == "PASS"]
        assert len(weights) >= 5 and all(r.metrics and not r.metrics.rel_l2 for r in weights)
