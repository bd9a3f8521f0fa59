"""A step more or less on one side is found from what the steps were given, and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict

TOKENS = torch.arange(1, 9)[None]


class Decoder(nn.Module):
    """Keeps what it was given, and answers with a mean over all of it so far."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out, self.factor = nn.Embedding(16, 8), nn.Linear(8, 8), 1.0
        self.kept: list[Tensor] = []

    def forward(self, ids: Tensor) -> Tensor:
        self.kept.append(self.table(ids))
        seen = torch.cat(self.kept, 1)
        out: Tensor = self.out(seen.mean(1)) * self.factor
        return out


def run(path: Path, spans: Sequence[tuple[int, int]], warm: int = 0, factor: float = 1.0) -> Path:
    model = Decoder()
    model.factor = factor
    with torch.no_grad(), dumpcmp.capture(model, path):
        for _ in range(warm):
            model(torch.zeros_like(TOKENS))
            model.kept.clear()
        for start, stop in spans:
            model(TOKENS[:, start:stop])
    return path


WHOLE = [(0, 5), (5, 6), (6, 7), (7, 8)]
SPLIT = [(0, 3), (3, 5), (5, 6), (6, 7), (7, 8)]
SOUND: list[tuple[dict[str, object], dict[str, object], str, str]] = [
    ({"spans": WHOLE}, {"spans": WHOLE, "warm": 1}, "--token-offset -1", "my side ran 1 more"),
    ({"spans": WHOLE}, {"spans": WHOLE, "warm": 2}, "--token-offset -2", "my side ran 2 more"),
    ({"spans": WHOLE, "warm": 1}, {"spans": WHOLE}, "--token-offset 1", "golden ran 1 more"),
    ({"spans": WHOLE}, {"spans": SPLIT}, "--token-offset -1", "takes in 1 step and my side in 2"),
    ({"spans": SPLIT}, {"spans": WHOLE}, "--token-offset 1", "takes in 2 steps and my side in 1"),
]
Compared = Callable[[dict[str, object], dict[str, object]], Outcome]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    def compare(golden: dict[str, object], target: dict[str, object]) -> Outcome:
        paths = [run(tmp_path / n, **t) for n, t in (("g", golden), ("t", target))]  # type: ignore[arg-type]
        return dumpcmp.compare(*paths)

    return compare


@pytest.mark.parametrize("golden, target, option, said", SOUND)
def test_other_steps_at_the_front_are_found_and_said(
    golden: dict[str, object], target: dict[str, object], option: str, said: str, compared: Compared
) -> None:
    outcome = compared(golden, target)
    assert outcome.passed, outcome.text()
    assert any(option in remark and said in remark for remark in outcome.remarks)
    aside = [row for row in outcome.rows if row.verdict is Verdict.SKIPPED]
    assert aside and all(row.reason and row.metrics is None for row in aside)


@pytest.mark.parametrize("golden, target, option, said", SOUND)
def test_a_fault_is_found_across_an_offset(
    golden: dict[str, object], target: dict[str, object], option: str, said: str, compared: Compared
) -> None:
    outcome = compared(golden, {**target, "factor": 1.01})
    assert outcome.exit_code == 1 and outcome.first_divergence is not None
    assert outcome.first_divergence.key.op == "<root>/mul"


def test_a_step_less_at_the_end_is_a_difference(compared: Compared) -> None:
    assert compared({"spans": WHOLE}, {"spans": WHOLE[:-1]}).exit_code == 1


def test_what_is_stated_counts(tmp_path: Path) -> None:
    golden, target = run(tmp_path / "g", WHOLE), run(tmp_path / "t", WHOLE, warm=1)
    assert dumpcmp.compare(golden, target, token_offset=-1).passed
    assert dumpcmp.compare(golden, target, token_offset=0).exit_code == 1
    assert dumpcmp.compare(golden, target, tokens="1-2").passed


def test_steps_that_were_given_the_same_are_counted_alike(compared: Compared) -> None:
    same = [(0, 1)] * 4
    outcome = compared({"spans": same}, {"spans": same[:-1]})
    assert outcome.exit_code == 1 and not any("--token-offset" in r for r in outcome.remarks)
