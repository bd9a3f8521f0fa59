"""A program of ExecuTorch is a run like others: each kernel and each delegate is a call."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.nouns.outcome import Conclusion

HAS_EXECUTORCH = importlib.util.find_spec("executorch") is not None
needs_executorch = pytest.mark.skipif(not HAS_EXECUTORCH, reason="executorch is not installed")
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.norm(F.gelu(self.up(x))).split(8, -1)
        made: Tensor = self.down(torch.cat([second, first], -1)).softmax(-1)
        return made


def lowered(model: nn.Module, path: Path, *partitioners: Any) -> Path:
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(model.eval(), (X,))
    made = to_edge_transform_and_lower(program, partitioner=list(partitioners)).to_executorch()
    path.write_bytes(made.buffer)
    return path


def golden(model: nn.Module, path: Path, *inputs: Tensor) -> Path:
    with torch.no_grad(), dumpcmp.capture(model.eval(), path):
        for x in inputs:
            model(x)
    return path


def dumped(program: Path, path: Path, *inputs: Tensor) -> dumpcmp.Archive:
    with dumpcmp.capture_exported(program, path) as model, torch.no_grad():
        for x in inputs:
            model(x)
    archive = dumpcmp.Archive(path)
    (facts,) = archive.run.values()
    assert facts["run"]["certificate"]["holds"], facts["run"]["certificate"]["text"]
    return archive


def ops_of(archive: dumpcmp.Archive) -> list[str]:
    return [str(call.op.function) for call in archive.calls.values() if call.op.function]


@needs_executorch
def test_a_sound_program_is_the_same_and_certified(tmp_path: Path) -> None:
    file = lowered(Encoder(), tmp_path / "m.pte")
    golden(Encoder(), tmp_path / "golden", X, X.flip(0))
    words = ["dump", "--mode", "executorch", "--path", str(tmp_path / "mine"), str(file),
             "--inputs", str(tmp_path / "golden")]  # fmt: skip
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    assert "certified:" in ran.output
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline
    assert {row.key.step for row in outcome.rows} == {0, 1}
    ops = ops_of(dumpcmp.Archive(tmp_path / "mine"))
    assert {"aten.addmm", "aten.gelu", "aten.native_layer_norm", "aten._softmax"} <= set(ops)


@needs_executorch
def test_a_delegate_is_one_call(tmp_path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    file = lowered(Encoder(), tmp_path / "m.pte", XnnpackPartitioner())
    archive = dumped(file, tmp_path / "mine", X)
    assert "executorch.XnnpackBackend" in ops_of(archive)
    (facts,) = archive.run.values()
    assert facts["run"]["delegates"] == ["executorch.XnnpackBackend"]
    golden(Encoder(), tmp_path / "golden", X)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline


@needs_executorch
def test_a_wrong_weight_is_told_at_its_layer(tmp_path: Path) -> None:
    model = Encoder()
    golden(Encoder(), tmp_path / "golden", X)
    with torch.no_grad():
        model.down.weight[0] *= 1.5
    dumped(lowered(model, tmp_path / "m.pte"), tmp_path / "mine", X)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.exit_code == 1
    assert outcome.first_divergence is not None
    assert "down" in str(outcome.first_divergence.key.op), outcome.headline


class Counting(nn.Module):
    """A buffer that each run adds to."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


@needs_executorch
def test_a_state_is_kept_from_run_to_run(tmp_path: Path) -> None:
    file = lowered(Counting(), tmp_path / "m.pte")
    with dumpcmp.capture_exported(file, tmp_path / "mine") as model, torch.no_grad():
        for number in (1, 2, 3):
            torch.testing.assert_close(model(X), 2 * number * X)
    archive = dumpcmp.Archive(tmp_path / "mine")
    (facts,) = archive.run.values()
    assert facts["run"]["certificate"]["holds"]
    sums = [archive.tensor(call.op, step=call.step, slot="output.0", model=call.model)
            for call in archive.calls.values() if call.op.function == "aten.add"]  # fmt: skip
    for number, found in enumerate(sums, 1):
        torch.testing.assert_close(found, number * X)
    assert len(sums) == 3


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))


@needs_executorch
@pytest.mark.parametrize("sign", [1, -1])
def test_the_branch_that_ran_is_recorded(sign: int, tmp_path: Path) -> None:
    file = lowered(Branching(), tmp_path / "m.pte")
    x = sign * X.abs()
    ops = ops_of(dumped(file, tmp_path / "mine", x))
    taken, left = ("aten.mul", "aten.sub") if sign > 0 else ("aten.sub", "aten.mul")
    assert taken in ops
    assert left not in ops


@needs_executorch
@pytest.mark.parametrize("change", [lambda b: b[:100], lambda b: b"\xff" * 500, lambda _: b""])
def test_damaged_programs_are_errors(change: Any, tmp_path: Path) -> None:
    file = lowered(Branching(), tmp_path / "m.pte")
    file.write_bytes(change(file.read_bytes()))
    with (
        pytest.raises(dumpcmp.DumpcmpError, match="is no program of ExecuTorch"),
        dumpcmp.capture_exported(file, tmp_path / "mine"),
    ):
        pass
    assert not (tmp_path / "mine").exists()


@pytest.mark.skipif(HAS_EXECUTORCH, reason="executorch is installed")
def test_without_executorch_the_mode_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "m.pte").write_bytes(b"")
    golden(Encoder(), tmp_path / "golden", X)
    words = ["dump", "--mode", "executorch", "--path", str(tmp_path / "mine"),
             str(tmp_path / "m.pte"), "--inputs", str(tmp_path / "golden")]  # fmt: skip
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert "needs executorch" in ran.output
    assert "pip install executorch" in ran.output
