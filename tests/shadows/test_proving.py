"""One way to write a thing is as good as another, and none of them hides a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Why
from dumpcmp.shadows.proving import ProofAnswer
from tests.choosing_cases import every_other
from tests.shadows.programs import SHORT, SOUND, WRONG, Case, dumped, plain
from tests.shadows.proved import prove

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
MODES = ("eager", "aten")


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SOUND, ids=str)
def test_two_ways_to_write_a_program_are_the_same(tmp_path: Path, case: Case, mode: str) -> None:
    golden = dumped(case.golden, tmp_path / "d1", "eager", case.dtype)
    target = dumped(case.target, tmp_path / "d2", mode, case.dtype)
    assert prove(golden, target).answer is ProofAnswer.SAME
    assert prove(target, golden).answer is ProofAnswer.SAME


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_another_program_is_named_at_the_op_where_they_part(tmp_path: Path, case: Case) -> None:
    golden = dumped(case.golden, tmp_path / "d1", "eager", case.dtype)
    target = dumped(case.target, tmp_path / "d2", "eager", case.dtype)
    first = prove(golden, target).first
    assert first is not None and first.answer is ProofAnswer.DIFFERENT_PROGRAM
    assert first.op.function in case.places


@pytest.mark.parametrize("case", every_other(WRONG), ids=str)
def test_swapping_the_sides_never_makes_two_programs_one(tmp_path: Path, case: Case) -> None:
    golden = dumped(case.golden, tmp_path / "d1", "eager", case.dtype)
    target = dumped(case.target, tmp_path / "d2", "aten", case.dtype)
    assert prove(target, golden).answer is ProofAnswer.DIFFERENT_PROGRAM


def test_a_wrong_kernel_is_named_on_the_side_that_has_it() -> None:
    golden, target = SAMPLES / "golden", SAMPLES / "target"
    for paths, why in (((golden, target), Why.INTRODUCED), ((target, golden), Why.GOLDEN)):
        first = dumpcmp.compare(*paths).first_divergence
        assert first is not None and first.judgement.why is why
        assert (first.key.op, first.key.slot) == ("layers.1.attn.o_proj/linear", "output.0")


def test_another_weight_is_another_start(tmp_path: Path) -> None:
    golden = dumped(plain, tmp_path / "d1", "eager")

    def moved(parts: nn.Module, x: Tensor) -> Tensor:
        return plain(parts, x)  # type: ignore[arg-type]

    torch.manual_seed(0)
    from tests.shadows.programs import Parts

    model = Parts(moved).eval()
    with torch.no_grad():
        model.last.weight[3] *= 1.001
        x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(7))
        with dumpcmp.capture(model, tmp_path / "d2"):
            model(x)
    first = prove(golden, tmp_path / "d2").first
    assert first is not None and first.answer is ProofAnswer.DIFFERENT_START
    assert (first.op, first.slot) == ("last", "param.weight")


def test_a_shorter_dtype_of_the_same_weights_is_the_same_program(tmp_path: Path) -> None:
    golden = dumped(plain, tmp_path / "d1", "eager")
    target = dumped(plain, tmp_path / "d2", "eager", SHORT)
    assert prove(golden, target).answer is ProofAnswer.SAME


class Trained(nn.Module):
    """A layer with a residual, whose loss is taken outside."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.first, self.last, self.by_hand = nn.Linear(8, 8), nn.Linear(8, 8), by_hand

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        spread = y.exp() / y.exp().sum(-1, keepdim=True) if self.by_hand else y.softmax(-1)
        return self.last(spread + y)  # type: ignore[no-any-return]


def trained(path: Path, by_hand: bool = False, bend: float = 1.0, rate: float = 0.1) -> Path:
    torch.manual_seed(0)
    model, x = Trained(by_hand), torch.randn(5, 8)
    if bend != 1.0:
        model.first.weight.register_hook(lambda grad: grad * bend)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), rate)
    with dumpcmp.capture(model, path, backward=True):
        for _ in range(2):
            F.mse_loss(model(x), x).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return path


def test_gradients_and_steps_of_another_way_are_the_same(tmp_path: Path) -> None:
    proof = prove(trained(tmp_path / "d1"), trained(tmp_path / "d2", by_hand=True))
    assert proof.answer is ProofAnswer.SAME, str(proof)
    assert proof.num_effects == 2 * (1 + 4)  # what it returns, and the gradients of four weights


def test_a_wrong_gradient_is_named_at_its_op(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(
        trained(tmp_path / "d1"), trained(tmp_path / "d2", by_hand=True, bend=1.01)
    )
    assert outcome.headline.startswith("WRONG at first"), outcome.headline
    first = outcome.first_divergence
    assert first is not None and first.key.step == 0
    assert (first.key.op, first.key.slot) == ("first/linear", "grad_input.1")


def test_another_rate_is_never_the_same(tmp_path: Path) -> None:
    proof = prove(trained(tmp_path / "d1"), trained(tmp_path / "d2", rate=0.102))
    assert proof.answer is not ProofAnswer.SAME
    assert proof.first is not None and proof.first.step == 1


def test_nothing_recorded_is_not_the_same(tmp_path: Path) -> None:
    paths = [dumped(plain, tmp_path / name, "eager") for name in ("d1", "d2")]
    for path in paths:
        for part in path.rglob("part-*.h5"):
            part.unlink()
    assert prove(*paths).answer is ProofAnswer.UNKNOWN


class Scattered(nn.Module):
    """Rows of one tensor of integers put among those of another, in two ways."""

    def __init__(self, is_joined: bool, first: int = 1) -> None:
        super().__init__()
        self.is_joined, self.first = is_joined, first

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        if self.is_joined:
            return torch.cat([x[:1], source[self.first : self.first + 2], x[3:]])
        return torch.slice_scatter(x, source[1:3], dim=0, start=1, end=3)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_integers_are_known_by_their_numbers_where_calls_take_them_in_another_order(
    tmp_path: Path, is_swapped: bool
) -> None:
    paths = [tmp_path / name for name in ("golden", "same", "wrong")]
    for path, model in zip(
        paths, (Scattered(False), Scattered(True), Scattered(True, 0)), strict=True
    ):
        with dumpcmp.capture(model, path):
            model(torch.arange(24).reshape(4, 6), torch.arange(-12, 12).reshape(4, 6))
    golden, same, wrong = paths
    pairs = ((golden, same), (golden, wrong))
    for pair, code in zip(pairs, (0, 1), strict=True):
        outcome = dumpcmp.compare(*(reversed(pair) if is_swapped else pair))
        assert outcome.exit_code == code, outcome.word
