"""Results of which each rank gives out a term: open, unless they are meant or added up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.align.listing import Listing
from dumpcmp.comparing.terms import terms_given
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import LaidOut, Measured, Metrics, Pair, Verdict
from dumpcmp.taps.distributed import ranks
from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.pooled import dump, samples

WIDTH = 8


class Net(nn.Module):
    """Columns of one product and rows of the next, without a reduction."""

    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 5, bias=False)
        held = slice(rank * WIDTH // num_ranks, (rank + 1) * WIDTH // num_ranks)
        self.up.weight = nn.Parameter(self.up.weight.detach()[held])
        self.up.bias = nn.Parameter(self.up.bias.detach()[held])
        self.down.weight = nn.Parameter(self.down.weight.detach()[:, held])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.up(x).tanh())
        return result


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def dumped(folder: Path, is_trained: bool) -> tuple[Path, Path]:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    whole = Net()(x).detach()

    def run(path: Path, net: Net) -> None:
        with dumpcmp.capture(net, path, backward=is_trained):
            given = net(x)
            if is_trained:  # as if the terms had been added up
                (given * whole).sum().backward()

    run(folder / "golden", Net())
    for rank in range(2):
        dumpcmp.set_rank(rank, 2)
        run(folder / "target", Net(rank, 2))
    return folder / "golden", folder / "target"


def test_a_missing_last_reduction_is_open_until_somebody_means_it(tmp_path: Path) -> None:
    runs = dumped(tmp_path, is_trained=False)
    outcome = dumpcmp.compare(*runs)
    assert outcome.conclusion is Conclusion.UNKNOWN
    (row,) = (row for row in outcome.rows if row.verdict is Verdict.INCONCLUSIVE)
    stated = "<root> output.0=d0 d1[ranks:partial]"
    assert str(row.key) == "Net[0] <root>#0 output.0" and f"--layout '{stated}'" in row.reason
    assert dumpcmp.compare(*runs, layouts=stated).conclusion is Conclusion.SAME


def test_gradients_that_agree_show_that_terms_were_meant(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(*dumped(tmp_path, is_trained=True))
    assert outcome.conclusion is Conclusion.SAME, outcome.word


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Means over tokens that lie on two ranks, and of all tokens on one."""
    path = tmp_path_factory.mktemp("pooled")
    forked(2, "tests.taps.distributed.programs.pooled", str(path))
    dump(path / "golden", "", samples())
    return path


def test_a_sum_of_means_is_right_where_it_is_divided_next(pooled: Path) -> None:
    assert dumpcmp.compare(pooled / "golden", pooled / "averaged").conclusion is Conclusion.SAME
    outcome = dumpcmp.compare(pooled / "golden", pooled / "not divided")
    root = outcome.first_divergence
    assert outcome.exit_code == 1 and root is not None
    assert root.key.op.function == "all_reduce" and "2 times golden" in root.reason


def test_terms_may_be_added_up_after_the_model(pooled: Path) -> None:
    found = {
        way: dumpcmp.compare(pooled / "golden", pooled / way).conclusion
        for way in ("not added up", "added up after")
    }
    assert found == {"not added up": Conclusion.UNKNOWN, "added up after": Conclusion.SAME}


def given(count: int, taken: str) -> dict[Pair, str]:
    """What is open of a result of two ranks, of which a collective took what `taken` names."""
    key = Key("M", 0, Op("<root>"), 0, Slot("output.0"))
    summed = Key("M", 0, Op("<root>@after/all_reduce"), 0, Slot("input.0"))
    values = {
        each: tuple(
            Record(each, 0, "float32", (count,), rank=rank, digest=f"{name} {rank}")
            for rank in range(2)
        )
        for each, name in ((key, "result"), (summed, taken))
    }
    laid = LaidOut(layout="d0[ranks:partial]", is_solved=True)
    pair = Pair(key, key)
    found = {pair: Measured(Metrics(count, equal=False, num_finite=count), laid=laid)}
    return terms_given(found, Listing(values, {}, 2))


def test_terms_that_a_collective_adds_up_and_single_numbers_are_not_open() -> None:
    assert given(6, "something else")
    assert not given(6, "result")
    assert not given(1, "something else")
