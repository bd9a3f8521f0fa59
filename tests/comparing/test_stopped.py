"""Ranks that crashed, are missing or stopped early: what is there is compared, and it is said."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.taps.distributed import ranks as distributed

STEPS, WIDTH = 2, 8


class Columns(nn.Module):
    """Layers side by side, each with a rank's share of the output features."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight = nn.Parameter(layer.weight.detach().chunk(size)[rank].clone())
            layer.bias = nn.Parameter(layer.bias.detach().chunk(size)[rank].clone())
        self.dies_in = -1

    def forward(self, x: Tensor) -> Tensor:
        x = x.tanh()
        for number, layer in enumerate(self.layers):
            if number == self.dies_in:
                raise KeyboardInterrupt
            out: Tensor = layer(x)
        return out


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    distributed._stated.clear()


def run(path: Path, rank: int, size: int, steps: int = STEPS, dies_in: int = -1) -> Path:
    """One rank of the run; it may die in a layer of its last step."""
    dumpcmp.set_rank(rank, size)
    model = Columns(rank, size)
    x = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
    try:
        with torch.no_grad(), dumpcmp.capture(None, path, mode="eager"):
            for step in range(steps):
                model.dies_in = dies_in if step == steps - 1 else -1
                model(x + step)
    except KeyboardInterrupt:
        pass
    return path


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return run(tmp_path / "golden", 0, 1)


CASES = {
    "whole": (STEPS, -1, ""),
    "died": (STEPS, 1, "rank 1 stopped in layers.0"),
    "fewer steps": (1, -1, "rank 1 has no step after 0; others go to 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_stops_leaves_open_what_it_did_not_do(
    golden: Path, tmp_path: Path, name: str
) -> None:
    steps, dies_in, said = CASES[name]
    path = run(tmp_path / "d", 0, 2)
    run(path, 1, 2, steps, dies_in)
    outcome = dumpcmp.compare(golden, path)
    assert not [row for row in outcome.rows if row.verdict.fails]
    counts = {v: outcome.tally[v] for v in (Verdict.PASS, Verdict.INCONCLUSIVE)}
    assert counts[Verdict.PASS] > 10, "what both ranks have, and what is the same on both"
    if not said:
        assert outcome.exit_code == 0
        return
    assert outcome.exit_code == 2 and said in outcome.word
    open_rows = [row for row in outcome.rows if row.verdict is Verdict.INCONCLUSIVE]
    assert open_rows and all("rank 1" in row.reason for row in open_rows)
    assert all(row.key.step == 1 for row in open_rows)


def test_what_a_missing_rank_had_is_not_missing_in_the_model(golden: Path, tmp_path: Path) -> None:
    path = run(tmp_path / "d", 0, 2)
    run(path, 1, 2)
    shutil.rmtree(path / "worldsize2_global_rank1")
    outcome = dumpcmp.compare(golden, path)
    assert outcome.exit_code == 2 and "rank 1 is missing" in outcome.word
    assert not [row for row in outcome.rows if row.verdict.fails]
    assert outcome.tally[Verdict.PASS] and outcome.tally[Verdict.INCONCLUSIVE]


class Rows(nn.Module):
    """Layers that a rank has a share of the input features of: what each gives is a term."""

    def __init__(self, rank: int, size: int, is_dying: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1)
        self.first.weight = nn.Parameter(self.first.weight.detach().chunk(size, 1)[rank].clone())
        self.is_dying = is_dying

    def forward(self, x: Tensor) -> Tensor:
        if self.is_dying:
            raise KeyboardInterrupt
        out: Tensor = self.first(x).sum() + 0 * self.last.bias
        return out


def test_a_term_of_what_a_rank_did_not_live_to_give_is_no_difference(tmp_path: Path) -> None:
    """Nor did the rank that died come as far as the weights that are noted at the end."""
    for path, rank, size in (("golden", 0, 1), ("d", 0, 2), ("d", 1, 2)):
        dumpcmp.set_rank(rank, size)
        model = Rows(rank, size, is_dying=rank == 1)
        x = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH).chunk(size, 1)[rank]
        captured = dumpcmp.capture(None, tmp_path / path, mode="eager", weights=True)
        with suppress(KeyboardInterrupt), torch.no_grad(), captured:
            model(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "d")
    assert outcome.exit_code == 2 and "rank 1 stopped in <root>, call 0" in outcome.word
    assert not [row for row in outcome.rows if row.verdict.fails]
    (term,) = (r for r in outcome.rows if r.key.op == "first" and r.key.slot == "output.0")
    assert term.verdict is Verdict.INCONCLUSIVE and "may be a term of it" in term.reason


def test_ranks_are_named_in_a_line() -> None:
    assert ranks_named(range(512)) == "ranks 0-511"
    assert ranks_named([3]) == "rank 3"
    assert ranks_named(range(0, 64, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more"
