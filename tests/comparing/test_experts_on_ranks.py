"""Experts that lie on several ranks: what one rank alone has is held against golden by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict
from dumpcmp.taps.distributed import ranks

WIDTH, COUNTS = 6, (1, 3, 2, 2)


class Experts(nn.Module):
    """Rows in the order of their experts, some of which are here."""

    def __init__(self, numbers: range) -> None:
        super().__init__()
        torch.manual_seed(0)
        every = [nn.Linear(WIDTH, WIDTH) for _ in COUNTS]
        self.experts = nn.ModuleDict({str(n): every[n] for n in numbers})

    def forward(self, rows: Tensor) -> Tensor:
        parts = torch.split(rows, [COUNTS[int(n)] for n in self.experts])
        made = [expert(p) for expert, p in zip(self.experts.values(), parts, strict=True)]
        return torch.cat(made).tanh()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def test_an_expert_is_compared_on_the_rank_that_has_it(tmp_path: Path) -> None:
    rows = torch.randn(sum(COUNTS), WIDTH, generator=torch.Generator().manual_seed(1))
    with dumpcmp.capture(golden := Experts(range(4)), tmp_path / "golden"), torch.no_grad():
        golden(rows)
    for rank, part in enumerate(rows.chunk(2)):
        dumpcmp.set_rank(rank, 2)
        target = Experts(range(2 * rank, 2 * rank + 2))
        with dumpcmp.capture(target, tmp_path / "target"), torch.no_grad():
            target(part)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0, outcome.word
    compared = {str(row.golden_key) for row in outcome.rows if row.verdict is Verdict.PASS}
    assert {f"Experts[0] experts.{n}#0 input.0" for n in range(4)} <= compared
    assert {f"Experts[0] <root>/split#0 output.{n}" for n in (2, 3)} <= compared
