"""Ops that some ranks run by themselves, or one side in every layer: no alarm, and no root."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from dumpcmp.taps.distributed import ranks

WIDTH = 6


class Tokens(nn.Module):
    """A class token before all others, which the rank has that has the first of them."""

    def __init__(self, *, has_class: bool = True, is_wrong: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cls = nn.Parameter(torch.randn(1, WIDTH))
        self.has_class, self.is_wrong = has_class, is_wrong

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        if self.has_class:
            x = torch.cat([self.cls * 1.1 if self.is_wrong else self.cls, x])
        out: Tensor = self.out(x).tanh()
        return out


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def _spread(room: Path, *, is_wrong: bool) -> Outcome:
    rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    with dumpcmp.capture(golden := Tokens(), room / "golden"), torch.no_grad():
        golden(rows)
    for rank, part in enumerate(rows.chunk(2)):
        dumpcmp.set_rank(rank, 2)
        target = Tokens(has_class=rank == 0, is_wrong=is_wrong and rank == 0)
        with dumpcmp.capture(target, room / "target"), torch.no_grad():
            target(part)
    return dumpcmp.compare(room / "golden", room / "target")


def test_a_share_that_one_rank_puts_something_to_is_no_wrong_shape(tmp_path: Path) -> None:
    outcome = _spread(tmp_path, is_wrong=False)
    assert outcome.exit_code == 0, outcome.word
    shares = [row for row in outcome.rows if row.key.op.function == "cat"]
    assert {row.verdict for row in shares} == {Verdict.PASS, Verdict.COVERED}


def test_what_one_rank_puts_to_its_share_must_be_right(tmp_path: Path) -> None:
    outcome = _spread(tmp_path, is_wrong=True)
    assert outcome.exit_code == 1
    assert outcome.first_divergence is not None
    assert outcome.first_divergence.key.op in ("<root>/mul", "<root>/cat")


class Turning(nn.Module):
    """A layer that may turn what it takes round and back, with something wrong between."""

    def __init__(self, *, turns: bool, is_wrong: bool) -> None:
        super().__init__()
        self.linear, self.turns, self.is_wrong = nn.Linear(WIDTH, WIDTH), turns, is_wrong

    def forward(self, x: Tensor) -> Tensor:
        if self.turns:
            x = x.flip(-1)
            x = x.sub(0.25) if self.is_wrong else x
            x = x.flip(-1)
        out: Tensor = self.linear(x)
        return out


def _turning(*, turns: bool, wrong: int = -1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Turning(turns=turns, is_wrong=n == wrong) for n in range(3)))


@pytest.mark.parametrize("wrong, op", [(-1, ""), (1, "1/flip")])
def test_of_ops_that_one_side_has_the_one_that_it_has_once_is_named(
    tmp_path: Path, wrong: int, op: str
) -> None:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    runs = {"golden": _turning(turns=False), "target": _turning(turns=True, wrong=wrong)}
    for name, model in runs.items():
        with dumpcmp.capture(model, tmp_path / name), torch.no_grad():
            model(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    first = outcome.first_divergence
    assert (first.key.op if first else "") == op  # turning is sound elsewhere, and is not here


class Logging(nn.Module):
    """A term of a product, of which a rank may log how large it is."""

    def __init__(self, rank: int, *, logs: bool, is_wrong: bool) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.linear, self.logs, self.is_wrong = nn.Linear(WIDTH, WIDTH), logs, is_wrong

    def forward(self, x: Tensor) -> Tensor:
        term = self.linear(x)
        if self.logs:
            (term * 1.01 if self.is_wrong else term).norm()
        out: Tensor = (term * 1.01 if self.is_wrong else term).tanh()
        return out


def _logged(path: Path, logger: int | None, wrong: int | None) -> Path:
    rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    for rank in range(3):
        dumpcmp.set_rank(rank, 3)
        model = Logging(rank, logs=rank == logger, is_wrong=rank == wrong)
        with dumpcmp.capture(model, path), torch.no_grad():
            model(rows)
    return path


@pytest.mark.each_value_once
@pytest.mark.parametrize("wrong", [None, 0, 1])
@pytest.mark.parametrize("target_logs", [True, False])
def test_what_one_rank_logs_is_held_against_the_value_of_that_rank(
    target_logs: bool, wrong: int | None, tmp_path: Path
) -> None:
    golden = _logged(tmp_path / "golden", None if target_logs else 1, None)
    target = _logged(tmp_path / "target", 1 if target_logs else None, wrong)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == (wrong is not None), outcome.word
    found = outcome.first_divergence
    if wrong is not None:
        assert found is not None and found.key.op in ("<root>/mul", "<root>/tanh", "linear/linear")
