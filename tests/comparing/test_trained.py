"""Weights that an optimizer made: its rule is found in golden's, and run on the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Conclusion
from dumpcmp.comparing import spans
from dumpcmp.faults import Fault, planted
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.telling import meant, words_of
from tests.choosing_cases import long, often

Optimizer = torch.optim.Optimizer
Make = Callable[[Iterable[nn.Parameter]], Optimizer]
Slip = Callable[[Optimizer], None]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.05),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.95)),
}


def short(tensor: Tensor) -> Tensor:
    """`tensor` with the 10 bits behind the point that TF32 has, in float64."""
    return ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()


class Linear(torch.autograd.Function):
    """A linear layer whose products are made of TF32, in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (short(x) @ short(weight).t()).float() + bias

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        given, of_weight = short(grad) @ short(weight), short(grad).t() @ short(x)
        return given.float(), of_weight.float(), grad.sum(0)


def in_tf32(linear: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    del linear, kwargs
    found: Tensor = Linear.apply(*args)  # type: ignore[no-untyped-call]
    return found


def trained(
    path: Path,
    make: Make,
    is_short: bool = False,
    slip: Slip | None = None,
    norm: float | None = None,
) -> Path:
    """Four steps, with a slip after the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    optimizer, generator = make(model.parameters()), torch.Generator().manual_seed(1)
    with ExitStack() as around:
        for name in ("0", "3") if is_short else ():
            around.enter_context(planted(model, Fault("tf32", name, "linear", in_tf32)))
        around.enter_context(dumpcmp.capture(model, path, backward=True))
        for step in range(4):
            out = model(torch.randn(16, 32, generator=generator))
            out.backward(torch.randn(out.shape, generator=generator))
            if norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            if slip is not None and step == 1:
                slip(optimizer)
            optimizer.step()
            optimizer.zero_grad()
    return path


def faster(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 1.02


def faster_unseen(optimizer: Optimizer) -> None:
    """A rate that no setting tells of any more when the step is done."""
    group, rate = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]

    group["lr"] = rate * 1.02
    optimizer.register_step_post_hook(lambda *_: group.__setitem__("lr", rate))


def first(outcome: Outcome) -> tuple[str, str, int]:
    assert outcome.first_divergence is not None
    key = outcome.first_divergence.key
    return str(key.op), str(key.slot), key.step


@pytest.mark.parametrize("name", often(OPTIMIZERS, "AdamW"))
def test_gradients_of_tf32_make_other_weights_and_another_rate_is_a_fault(
    name: str, tmp_path: Path
) -> None:
    make = OPTIMIZERS[name]
    golden = trained(tmp_path / "g", make)
    sound = dumpcmp.compare(golden, trained(tmp_path / "s", make, is_short=True), allow="tf32")
    assert sound.conclusion is Conclusion.SAME, sound.headline
    apart = [row for row in sound.rows if row.key.slot == "param.weight" and row.key.step == 3]
    assert all(row.replay and row.metrics and row.metrics.rel_l2 > 0 for row in apart)
    slipped = trained(tmp_path / "t", make, is_short=True, slip=faster_unseen)
    outcome = dumpcmp.compare(golden, slipped, allow="tf32")
    assert outcome.conclusion is Conclusion.WRONG and first(outcome) == ("0", "param.weight", 2)
    assert "golden's optimizer" in outcome.headline
    seen = dumpcmp.compare(golden, trained(tmp_path / "u", make, slip=faster))
    assert first(seen) == ("<effects>/training", "training", 1) and "'lr'" in seen.headline


@pytest.mark.parametrize("name", often(["SGD", "AdamW"], "SGD"))
def test_gradients_that_were_clipped_are_taken_so(name: str, tmp_path: Path) -> None:
    """The norms of both runs differ, and with them all that an optimizer was given."""
    make = OPTIMIZERS[name]
    golden = trained(tmp_path / "g", make, norm=1.0)
    right = trained(tmp_path / "s", make, is_short=True, norm=1.0)
    sound = dumpcmp.compare(golden, right, allow="tf32")
    assert sound.conclusion is Conclusion.SAME, sound.headline
    slipped = trained(tmp_path / "t", make, is_short=True, slip=faster_unseen, norm=1.0)
    outcome = dumpcmp.compare(golden, slipped, allow="tf32")
    assert first(outcome) == ("0", "param.weight", 2), outcome.headline


def spoiling(name: str) -> Slip:
    """Changes what an optimizer keeps by a thousandth after the last step, so that none sees it."""

    def slip(optimizer: Optimizer) -> None:
        steps = iter((1, 2, 3))

        def stepped(*_: Any) -> None:
            if next(steps) == 3:
                for kept in optimizer.state.values():
                    kept[name].mul_(1.001)

        optimizer.register_step_post_hook(stepped)

    return slip


KEPT = [("momentum", "momentum_buffer"), long("Adam", "exp_avg"), ("AdamW", "exp_avg_sq")]


@pytest.mark.parametrize(("optimizer", "word"), KEPT)
def test_what_an_optimizer_keeps_is_made_of_gradients(
    optimizer: str, word: str, tmp_path: Path
) -> None:
    make = OPTIMIZERS[optimizer]
    golden = trained(tmp_path / "g", make)
    spoilt = trained(tmp_path / "t", make, is_short=True, slip=spoiling(word))
    outcome = dumpcmp.compare(golden, spoilt, allow="tf32")
    assert first(outcome) == ("<effects>/optimizer", f"output.state.0.weight.{word}", 3)
    assert "golden's optimizer makes of the same gradients" in outcome.headline
    failing = {row.key.slot.rpartition(".")[2] for row in outcome.rows if row.verdict.fails}
    assert failing == {word}


def test_a_weight_is_told_with_what_it_was_made_of(tmp_path: Path) -> None:
    make = OPTIMIZERS["SGD"]
    golden, target = (
        trained(tmp_path / "g", make),
        trained(tmp_path / "t", make, slip=faster_unseen),
    )
    outcome = dumpcmp.compare(golden, target, replay="all")
    said = "\n".join(words_of(outcome, meant(outcome, "")[0]))
    assert "was at token 1 float32 [64, 32]: PASS, the same" in said
    assert "had the gradient at token 1 float32 [64, 32]: PASS, the same" in said
    assert "nan" not in said and "took" not in said


def test_steps_that_are_compared_one_by_one_know_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    make = OPTIMIZERS["momentum"]
    golden = trained(tmp_path / "g", make)
    sound = dumpcmp.compare(golden, trained(tmp_path / "s", make, is_short=True), allow="tf32")
    assert sound.conclusion is Conclusion.SAME, sound.headline
    slipped = trained(tmp_path / "t", make, is_short=True, slip=faster_unseen)
    outcome = dumpcmp.compare(golden, slipped, allow="tf32")
    assert first(outcome) == ("0", "param.weight", 2), outcome.headline


def test_what_cannot_be_told_is_not_judged(tmp_path: Path) -> None:
    def make(weights: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.RMSprop(weights, lr=0.001)

    golden = trained(tmp_path / "g", make)
    outcome = dumpcmp.compare(golden, trained(tmp_path / "t", make, is_short=True), allow="tf32")
    assert outcome.conclusion is Conclusion.UNKNOWN, outcome.headline
    assert any("cannot be told" in row.replay.unknown for row in outcome.rows if row.replay)


class Shifted(nn.Module):
    """A bias before a norm over the batch, whose gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(12, 40), nn.BatchNorm1d(40), nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(torch.tanh(self.norm(self.up(x))))
        return found


def test_a_bias_whose_gradient_is_rounding_may_stay_as_it_was(tmp_path: Path) -> None:
    def run(path: Path, name: str = "") -> Path:
        torch.manual_seed(3)
        model = Shifted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if name:
            model.get_parameter(name).register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
        with dumpcmp.capture(model, path, backward=True):
            for _ in range(2):
                model(torch.randn(32, 12)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return path

    golden = run(tmp_path / "g")
    sound = dumpcmp.compare(golden, run(tmp_path / "s", "up.bias"))
    changed = [row for row in sound.rows if row.key.op == "up" and row.key.slot == "param.bias"]
    assert any(row.metrics and row.metrics.rel_l2 > 0 for row in changed)
    assert sound.conclusion is Conclusion.SAME, sound.headline
    wrong = dumpcmp.compare(golden, run(tmp_path / "t", "down.bias"))
    assert first(wrong) == ("down/linear", "grad_input.2", 0), wrong.headline


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [(torch.float32, 3e-9), (torch.bfloat16, 1e-4), long(torch.float16, 1e-5)],
)
def test_however_small_an_update_is_one_that_was_left_out_is_named(
    dtype: torch.dtype, rate: float, tmp_path: Path
) -> None:
    def run(path: Path, skips: bool, factor: float = 1.0) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with dumpcmp.capture(model, path, backward=True):
            for step in range(3):
                generator = torch.Generator().manual_seed(step)
                out = model(torch.randn(16, 32, generator=generator).to(dtype))
                seed = torch.randn(out.shape, generator=generator).to(dtype)
                out.backward(seed + (factor - 1) * torch.eye(16, 8, dtype=dtype) * seed)
                if skips and step == 1:
                    model.get_parameter("2.weight").grad = None
                optimizer.step()
                optimizer.zero_grad()
        return path

    factor = 1 + 2 * torch.finfo(dtype).eps
    golden = run(tmp_path / "g", skips=False)
    sound = dumpcmp.compare(golden, run(tmp_path / "s", skips=False, factor=factor))
    assert sound.exit_code == 0, sound.headline
    outcome = dumpcmp.compare(golden, run(tmp_path / "t", skips=True, factor=factor))
    assert first(outcome) == ("2", "param.weight", 2), outcome.headline
    assert "the target's did not" in outcome.headline


def test_a_weight_that_grew_is_not_judged_by_what_it_was(tmp_path: Path) -> None:
    def run(path: Path, factor: float) -> Path:
        torch.manual_seed(3)
        model = nn.Embedding(10, 8)
        with dumpcmp.capture(model, path, backward=True):
            for step in range(2):
                out = model(torch.arange(6))
                out.backward(
                    factor * torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
                )
                assert model.weight.grad is not None
                moved = model.weight.detach() - 0.1 * model.weight.grad
                model.weight = nn.Parameter(torch.cat([moved, moved[:2]]))
        return path

    outcome = dumpcmp.compare(run(tmp_path / "g", 1.0), run(tmp_path / "t", 1 + 2.0**-20))
    told = [row.replay for row in outcome.rows if row.key.slot.is_weight and row.key.step == 1]
    grew = "it had another shape before"  # in the second step, and at the end
    assert [replay.unknown for replay in told if replay] == [grew, grew]
