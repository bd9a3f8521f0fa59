"""A whole model that runs in a loop what each rank runs once: laps are held against ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from dumpcmp.taps.distributed import ranks
from tests.choosing_cases import long

SHARDS, EXPERTS, WIDTH, ROOM = 2, 3, 8, 1


class Router(nn.Module):
    """Tokens to places of experts, each of which has room for so many of a shard's tokens."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wg = nn.Linear(WIDTH, EXPERTS)
        self.shards = shards
        self.edit: Callable[[Tensor], Tensor] = lambda gates: gates
        self.again: Callable[[Tensor, Tensor], Tensor] = lambda part, gates: gates
        self.places: Callable[[Tensor], Tensor] = lambda chosen: chosen.cumsum(0)

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for part in x.chunk(self.shards) if self.shards > 1 else [x]:
            gates = self.again(part, self.wg(part).softmax(-1))
            chosen = F.one_hot(gates.argmax(-1), EXPERTS)
            place = self.places(chosen) * chosen - 1
            kept = (place >= 0) & (place < ROOM)
            outs.append(self.edit(gates * kept).sum(-1, keepdim=True) * part)
        return torch.cat(outs) if self.shards > 1 else outs[0]


class Model(nn.Module):
    """Two such layers."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Router(shards) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(x + layer(x))
        return x


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def _rows() -> Tensor:
    return torch.randn(SHARDS * 6, WIDTH, generator=torch.Generator().manual_seed(1))


def _run(
    path: Path, spoil: Callable[[Router, int], None] | None = None, backward: bool = False
) -> None:
    golden = Model(SHARDS).requires_grad_(False)
    with dumpcmp.capture(golden, path / "golden", backward=backward):
        _called(golden, _rows(), backward)
    for rank, part in enumerate(_rows().chunk(SHARDS)):
        model = Model(1).requires_grad_(False)
        if spoil:
            spoil(model.layers[1], rank)  # type: ignore[arg-type]
        dumpcmp.set_rank(rank, SHARDS)
        with dumpcmp.capture(model, path / "target", backward=backward):
            _called(model, part, backward)


def _called(model: nn.Module, rows: Tensor, backward: bool) -> None:
    out = model(rows.requires_grad_(backward))
    if backward:
        out.square().sum().backward()


def _compared(
    path: Path, spoil: Callable[[Router, int], None] | None = None, backward: bool = False
) -> Outcome:
    _run(path, spoil, backward)
    return dumpcmp.compare(path / "golden", path / "target")


def test_each_lap_is_compared_with_its_rank(tmp_path: Path) -> None:
    outcome = _compared(tmp_path)
    assert outcome.exit_code == 0
    assert {row.verdict for row in outcome.rows} <= {Verdict.PASS, Verdict.COVERED}
    alone = [row.key.op for row in outcome.rows if row.verdict is Verdict.COVERED]
    assert {op.function for op in alone} <= {"chunk", "cat"}
    assert any("in a loop" in remark for remark in outcome.remarks)


def test_the_gradient_of_a_part_is_not_that_of_the_whole(tmp_path: Path) -> None:
    """Golden cuts its tokens before the loop; a rank's share has what others make of it, too."""
    outcome = _compared(tmp_path, backward=True)
    assert outcome.exit_code == 0, outcome.word
    assert {row.verdict for row in outcome.rows} <= {Verdict.PASS, Verdict.COVERED}
    cut = [row for row in outcome.rows if row.golden_key and row.key.op == "layers.1/chunk"]
    alone = {row.key.slot for row in cut if row.target_key is None}
    assert "grad_output.0" in alone
    taken = [row for row in outcome.rows if row.key.op == "layers.1.wg/linear"]
    assert {row.verdict for row in taken if row.key.slot == "grad_input.0"} == {Verdict.COVERED}


def _places(router: Router, rank: int) -> None:
    if rank == 1:
        router.places = lambda chosen: chosen.flip(0).cumsum(0).flip(0)


def _scaled(router: Router, rank: int) -> None:
    if rank == 1:
        router.edit = lambda gates: gates * 1.01


def _summed(router: Router, rank: int) -> None:
    if rank == 1:
        router.edit = lambda gates: gates.cumsum(-1) - gates  # of which golden knows nothing


def _again(router: Router, rank: int) -> None:
    if rank == 1:  # the same product once more, then another function
        router.again = lambda part, gates: F.linear(part, router.wg.weight, router.wg.bias).exp()


def _stale(router: Router, rank: int) -> None:
    if rank == 1:
        router.wg.weight.data.mul_(1.1)


@pytest.mark.parametrize(
    "spoil, op",
    [
        (_places, "cumsum|flip|mul"),
        long(_scaled, "mul"),
        (_stale, ""),
        long(_summed, "cumsum"),
        (_again, "exp"),
    ],
)
def test_a_fault_of_one_rank_is_named_with_its_op(
    tmp_path: Path, spoil: Callable[[Router, int], None], op: str
) -> None:
    outcome = _compared(tmp_path, spoil)
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None
    assert first.key.op.module.startswith("layers.1")
    assert first.key.op.function in op.split("|")
    assert "rank 1" in first.reason or first.key.op.function == "flip"  # which rank 1 alone runs


def test_what_ranks_have_for_themselves_is_held_against_each(tmp_path: Path) -> None:
    """A sum along rows is one of each rank's rows, not of ranks laid one upon the other."""
    outcome = _compared(tmp_path)
    assert outcome.exit_code == 0
    summed = [r for r in outcome.rows if r.key.op.function == "cumsum" and r.key.slot.is_output]
    assert summed and all(row.metrics and row.metrics.equal for row in summed)
    assert {row.verdict for row in summed} == {Verdict.PASS}
