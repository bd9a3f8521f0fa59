"""A program of torch.export is a run like others: captured op by op, certified, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.nouns.outcome import Conclusion


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return made


class Counting(nn.Module):
    """Two calls of one block, a constant, and a buffer that each call changes."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, scale: int = 2) -> dict[str, Tensor]:
        self.count.add_(1)
        made = self.block(self.block(x)) + torch.tensor([0.5])
        return {"made": made * scale, "count": self.count.clone()}


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def counting() -> Counting:
    torch.manual_seed(0)
    return Counting().eval()


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden dump of two tokens, and the program as a file, plain and decomposed."""
    room = tmp_path_factory.mktemp("programs")
    model = counting()
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(X, scale=3)
        model(X[:2], scale=3)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(
        counting(), (X,), {"scale": 3}, dynamic_shapes={"x": {0: rows}, "scale": None}
    )
    torch.export.save(program, room / "plain.pt2")
    torch.export.save(program.run_decompositions(), room / "decomposed.pt2")
    return room


def certificate(path: Path) -> dict[str, Any]:
    (facts,) = dumpcmp.Archive(path).run.values()
    found: dict[str, Any] = facts["run"]["certificate"]
    return found


@pytest.mark.parametrize("form", ["plain", "decomposed"])
def test_a_sound_program_is_the_same_and_certified(form: str, room: Path, tmp_path: Path) -> None:
    words = ["dump", "--mode", "exported", "--path", str(tmp_path / "mine"),
             str(room / f"{form}.pt2"), "--inputs", str(room / "golden")]  # fmt: skip
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    assert certificate(tmp_path / "mine")["holds"]
    outcome = dumpcmp.compare(room / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline
    assert {row.key.step for row in outcome.rows} == {0, 1}
    ops = {str(call.op) for call in dumpcmp.Archive(tmp_path / "mine").calls.values()}
    norm = "layer_norm" if form == "plain" else "native_layer_norm"
    assert {f"block.norm/aten.{norm}", f"block.norm@1/aten.{norm}"} <= ops


def test_a_program_changes_its_buffers_as_the_model_does(room: Path, tmp_path: Path) -> None:
    with dumpcmp.capture_exported(room / "plain.pt2", tmp_path / "mine") as model:
        for number in (1.0, 2.0):
            _, count = model(X)
            assert float(count) == number
        assert float(model.get_buffer("count")) == 2.0
    assert certificate(tmp_path / "mine")["holds"]


def test_a_wrong_weight_is_told_by_name(tmp_path: Path, room: Path) -> None:
    model = counting()
    with torch.no_grad():
        model.block.up.weight[0, 0] += 1.0
    torch.export.save(torch.export.export(model, (X,), {"scale": 3}), tmp_path / "wrong.pt2")
    with dumpcmp.capture_exported(tmp_path / "wrong.pt2", tmp_path / "mine") as wrong:
        wrong(X)
    outcome = dumpcmp.compare(room / "golden", tmp_path / "mine")
    assert outcome.exit_code == 1
    assert outcome.first_divergence is not None
    assert str(outcome.first_divergence.key.op) == "block.up", outcome.headline


class Branching(nn.Module):
    """A branch, and a loop with the weights of a module in its body."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        x = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))

        def goes_on(at: Tensor, y: Tensor) -> Tensor:
            return at < 3

        def body(at: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return at + 1, torch.tanh(self.up(y))

        loop: Any = torch._higher_order_ops.while_loop
        return loop(goes_on, body, (torch.tensor(0), x))[1]


def test_bodies_of_control_flow_are_recorded(tmp_path: Path) -> None:
    program = torch.export.export(Branching().eval(), (X,))
    torch.export.save(program, tmp_path / "m.pt2")
    with dumpcmp.capture_exported(tmp_path / "m.pt2", tmp_path / "mine") as model:
        assert torch.equal(model(X), program.module()(X))
    assert certificate(tmp_path / "mine")["holds"]
    ops = [(str(call.op), call.call) for call in dumpcmp.Archive(tmp_path / "mine").calls.values()]
    assert [number for op, number in ops if op == "up/aten.linear"] == [0, 1, 2]
    taken, left = ("mul", "sub") if float(X.sum()) > 0 else ("sub", "mul")
    assert (f"<root>/aten.{taken}", 0) in ops
    assert (f"<root>/aten.{left}", 0) not in ops


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


def test_a_program_that_draws_is_certified_with_the_same_draws(tmp_path: Path) -> None:
    program = torch.export.export(Dropping(), (X,))
    with dumpcmp.capture_exported(program, tmp_path / "mine") as model:
        model(X)
    assert certificate(tmp_path / "mine")["holds"]


def test_inputs_that_do_not_fit_are_errors(room: Path, tmp_path: Path) -> None:
    with dumpcmp.capture_exported(room / "plain.pt2", tmp_path / "mine", overwrite=True) as model:
        with pytest.raises(dumpcmp.CaptureError, match="x was not given"):
            model()
        with pytest.raises(dumpcmp.CaptureError, match="is float32, and what was given is int64"):
            model(torch.ones(3, 8, dtype=torch.int64))


def test_verify_takes_the_path_of_a_program(room: Path) -> None:
    program = torch.export.export(Block().eval(), (X,))
    torch.manual_seed(0)
    model = Block().eval()
    path = room / "block.pt2"
    torch.export.save(torch.export.export(model, (X,)), path)
    assert dumpcmp.verify([X], model, path).passed
    torch.export.save(program, path)
    with pytest.raises(dumpcmp.VerificationError):
        dumpcmp.verify([X], model, path)


@pytest.mark.parametrize(
    "words, message",
    [
        (["none.pt2"], "none.pt2 is not a file"),
        (["plain.pt2"], "needs what the model is called with"),
        (["plain.pt2", "--inputs", "i.npz", "--graph-level", "basic"], "says nothing to --mode"),
        (["i.npz", "--inputs", "i.npz"], "is not a program of torch.export"),
        (["noise.pt2", "--inputs", "i.npz"], "is not a program that torch"),
    ],
    ids=["missing", "no inputs", "of onnx", "suffix", "noise"],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, room: Path, tmp_path: Path
) -> None:
    np.savez(room / "i.npz", x=X.numpy())
    (room / "noise.pt2").write_bytes(b"\xff" * 99)
    named = [str(room / word) if "." in word else word for word in words]
    ran = CliRunner().invoke(
        main, ["dump", "--mode", "exported", "--path", str(tmp_path / "mine"), *named]
    )
    assert ran.exit_code == 2
    assert message in ran.output
    assert not (tmp_path / "mine").exists()
