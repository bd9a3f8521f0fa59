"""Ports whose values are golden's while no call is: they pair, and a fault among them is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict

BATCH, TOKENS, HEADS, HEAD = 2, 6, 3, 8


class Golden(nn.Module):
    """Heads before tokens, turned by a table: halves of a head belong together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = (nn.Linear(HEADS * HEAD, HEADS * HEAD, False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.into(x).view(BATCH, TOKENS, HEADS, HEAD).transpose(1, 2)
        rates = 100 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = (torch.arange(TOKENS)[:, None] * rates).repeat(1, 2)
        other = torch.cat((-heads[..., HEAD // 2 :], heads[..., : HEAD // 2]), -1)
        turned = heads * angles.cos() + other * angles.sin()
        out: Tensor = self.out(turned.transpose(1, 2).flatten(2))
        return out


class Port(nn.Module):
    """Tokens first, with products of halves: no call inside is one of golden's."""

    def __init__(self, golden: Golden, in_pairs: bool) -> None:
        super().__init__()
        self.first, self.last = golden.into, golden.out
        self.in_pairs = in_pairs

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(0, 1).contiguous()).unflatten(-1, (HEADS, HEAD))
        steps = torch.arange(TOKENS, dtype=torch.float32)
        angles = torch.outer(steps, 100 ** (-torch.arange(0, HEAD, 2) / HEAD))[:, None, None]
        one, other = (x[..., ::2], x[..., 1::2]) if self.in_pairs else x.chunk(2, -1)
        turned = (
            one * angles.cos() - other * angles.sin(),
            other * angles.cos() + one * angles.sin(),
        )
        x = torch.stack(turned, -1).flatten(-2) if self.in_pairs else torch.cat(turned, -1)
        out: Tensor = self.last(x.flatten(2)).transpose(0, 1)
        return out


@pytest.mark.parametrize("in_pairs", [False, True])
def test_a_fault_is_named_at_its_op_and_not_at_a_table(tmp_path: Path, in_pairs: bool) -> None:
    golden = Golden()
    x = torch.randn(BATCH, TOKENS, HEADS * HEAD)
    for name, model in (("d1", golden), ("d2", Port(golden, in_pairs))):
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / name):
            model(x)
    paths = tmp_path / "d1", tmp_path / "d2"
    mapping = dumpcmp.propose_mapping(*paths).write(tmp_path / "map.yaml")
    outcome = dumpcmp.compare(*paths, mapping=mapping)
    rows = {f"{r.key.op}#{r.key.call} {r.key.slot}": r.verdict for r in outcome.rows}
    assert rows["<root>/transpose#0 output.0"] is Verdict.COVERED  # the port has no such call
    assert outcome.exit_code == int(in_pairs)
    first = outcome.first_divergence
    # Every other element of what golden has is no other value; what is made of them first is.
    assert (first.key.op if first else "") == ("<root>/mul" if in_pairs else "")
