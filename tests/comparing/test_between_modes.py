"""A program is the same in every mode: sound runs of awkward small ones, in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict


class Square(nn.Module):
    """Products whose weights look the same transposed, and norms of as many numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x[:, 0])).tanh())
        return out


class Branches(nn.Module):
    """A view that shows all of a tensor, which something else takes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.sin(x).view(-1, 8)
        weights = F.softmax(self.gate(flat.reshape(-1, 8)), -1)
        mixed: Tensor = self.up(flat[torch.tensor([1, 0, 3, 2])])
        return mixed * weights[:, :1]


class Overwritten(nn.Module):
    """Results that are changed in place before and after others take them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.inner(x) * 2.0) + 1.0
        y = y.mul_(3.0).view(-1, 8).add_(x.view(-1, 8))
        room = torch.zeros_like(y)
        return room.index_add_(0, torch.arange(len(y)), y * y).mul_(0.5)


class Tokens(nn.Module):
    """Two parameters with the same numbers, one after the other in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(1, 4, 4)) for _ in range(2))
        self.mixed = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (self.first.expand(2, -1, -1), self.second.expand(2, -1, -1))
        out: Tensor = self.mixed(torch.cat((*tokens, x), 1)).tanh()
        return out


class Unused(nn.Module):
    """Keeps more parts of a tensor than it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        _, *kept = (x * self.weight).unbind(-1)
        return torch.sin(kept[0] + kept[-1])


NO_TWINS = dumpcmp.Compiled(twin=False)  # which double the kernels


def run(model: nn.Module, where: Path, mode: str) -> None:
    x = torch.randn(
        2, 2, next(model.parameters()).shape[1], generator=torch.Generator().manual_seed(1)
    )

    def step() -> None:
        out = model(x)
        (out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum().backward()

    how = NO_TWINS if mode == "compiled" else mode
    dumped = dump(step, where, mode=how, backward=True, seed=0)
    if dumped.error is not None:
        raise dumped.error


class Scaled(torch.autograd.Function):
    """Gives a gradient that is a hundredth too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 1.01


def _scaled(_: nn.Module, __: object, out: Tensor) -> Any:
    return Scaled.apply(out)  # type: ignore[no-untyped-call]


def compared(build: type[nn.Module], mode: str, tmp_path: Path, wrong: bool = False) -> Outcome:
    torch.manual_seed(0)
    model = build()
    for name in ("eager", mode):
        model.zero_grad()
        if wrong and name == mode:
            first = next(iter(model.children()))
            first.register_forward_hook(_scaled)
        run(model, tmp_path / name, name)
    return dumpcmp.compare(tmp_path / "eager", tmp_path / mode)


@pytest.mark.each_value_once
@pytest.mark.parametrize("build", [Square, Branches, Overwritten, Tokens])
@pytest.mark.parametrize("mode", ["fx", "aten"])
def test_a_program_is_trained_alike_in_every_mode(
    build: type[nn.Module], mode: str, tmp_path: Path
) -> None:
    outcome = compared(build, mode, tmp_path)
    assert not [(str(row.key), row.reason) for row in outcome.rows if row.verdict.fails]
    assert outcome.exit_code == 0
    assert any(row.key.slot.is_gradient and row.verdict == "PASS" for row in outcome.rows)


@pytest.mark.parametrize("build", [Square, Branches, Overwritten])
def test_a_gradient_that_is_wrong_in_another_mode_is_found(
    build: type[nn.Module], tmp_path: Path
) -> None:
    outcome = compared(build, "aten", tmp_path, wrong=True)
    assert outcome.exit_code == 1
    failing = [row for row in outcome.rows if row.verdict is Verdict.FAIL]
    assert failing and all(row.key.slot.is_gradient for row in failing)


def test_a_part_that_nobody_takes_has_no_gradient_in_a_compiled_run_either(tmp_path: Path) -> None:
    assert compared(Unused, "compiled", tmp_path).exit_code == 0


class Pooled(nn.Module):
    """Norms of what residuals add up, in a short dtype, and a second result that no loss takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Linear(32, 32, bias=False), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + F.silu(self.first(x))
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal.to(x.dtype), self.pool(x)


def pooled(where: Path, mode: str) -> Outcome:
    torch.manual_seed(0)
    model = Pooled().bfloat16()
    x = torch.randn(8, 32).bfloat16()
    with dumpcmp.capture(model, where / mode, mode=mode, backward=True):
        model(x)[0].sum().backward()
    return dumpcmp.compare(where / "eager", where / mode)


def test_kernels_use_what_they_compute_before_it_is_rounded(tmp_path: Path) -> None:
    pooled(tmp_path, "eager")
    outcome = pooled(tmp_path, "compiled")
    assert not [(str(row.key), row.reason) for row in outcome.rows if row.verdict.fails]
    assert outcome.exit_code == 0
    zeros = [row for row in outcome.rows if "zero everywhere" in row.reason]
    assert zeros and {row.verdict for row in zeros} == {Verdict.COVERED}


class InHalves(nn.Linear):
    """A linear that adds up two parts in float32, as a kernel that splits its sums may."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        half, weight = self.in_features // 2, self.weight.float()
        one = F.linear(x[..., :half].float(), weight[:, :half])
        other = F.linear(x[..., half:].float(), weight[:, half:], self.bias.float())
        return ((one + other) * self.factor if self.factor != 1 else one + other).to(x.dtype)


@pytest.mark.parametrize("factor, code", [(1.0, 0), (1.02, 1)])
def test_one_call_against_two_whose_sum_it_is(factor: float, code: int, tmp_path: Path) -> None:
    for kind, name in ((nn.Linear, "golden"), (InHalves, "target")):
        torch.manual_seed(0)
        model = nn.Sequential(kind(16, 8), nn.ReLU(), nn.Linear(8, 8)).bfloat16()
        if isinstance(model[0], InHalves):
            model[0].factor = factor
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / name):
            model(torch.randn(4, 16).bfloat16())
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == code
    if code:
        assert outcome.headline.startswith("DIFFERENT PROGRAM at 0/mul")
        assert "golden has nothing like it" in outcome.headline


class Returning(nn.Module):
    """A tensor that is turned round and back, and has gradients of its own before and after."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.copied, self.act = copied, nn.SiLU()
        self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x * torch.sigmoid(x) if self.copied else self.act(x)
        turned = y.transpose(0, 1)
        back = turned.transpose(0, 1)
        back = back.clone() if self.copied else back
        out: Tensor = self.inner(turned.contiguous()).transpose(0, 1).tanh() + back * 3.0
        return out


def test_a_view_that_is_a_copy_on_one_side_has_its_own_gradient(tmp_path: Path) -> None:
    for copied, name in ((False, "golden"), (True, "target")):
        torch.manual_seed(0)
        run(Returning(copied), tmp_path / name, "eager")
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert not [(str(row.key), row.reason) for row in outcome.rows if row.verdict.fails]
    assert outcome.exit_code == 0


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.RNN(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x)[0])
        return y


def test_thousands_of_ops_against_one_that_does_the_same(tmp_path: Path) -> None:
    for mode in ("aten", "eager"):
        torch.manual_seed(0)
        model = Recurrent()
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / mode, mode=mode):
            model(torch.randn(2, 200, 8))
    outcome = dumpcmp.compare(tmp_path / "aten", tmp_path / "eager")
    assert outcome.conclusion is dumpcmp.Conclusion.SAME, outcome.headline
