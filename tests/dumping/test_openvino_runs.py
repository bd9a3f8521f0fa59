"""An ONNX model in OpenVINO is a run like others; what its kernels hold in memory is recorded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.taps.openvino.openvino_runtime import OpenVinoKernel, first_other_kernel

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

HAS_OPENVINO = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="openvino is not installed")
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(F.gelu(self.norm(torch.relu(self.up(x))))).softmax(-1)
        return made


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("openvino")
    model = Head().eval()
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(X)
    program = torch.onnx.export(model, (X,), dynamo=True, verbose=False, opset_version=20)
    assert program is not None
    program.save(room / "m.onnx")
    return room


@needs_openvino
def test_a_sound_model_is_the_same_and_certified(room: Path, tmp_path: Path) -> None:
    words = [
        "dump", "--mode", "openvino", "--path", str(tmp_path / "mine"), str(room / "m.onnx"),
        "--inputs", str(room / "golden"), "--option", "INFERENCE_PRECISION_HINT=f32",
    ]  # fmt: skip
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    assert "certified:" in ran.output
    archive = dumpcmp.Archive(tmp_path / "mine")
    calls = {str(call.op): call for call in archive.calls.values() if call.op.function}
    relu, linear = calls["<root>/onnx.Relu"], calls["up/onnx.Gemm"]
    assert relu.kernel == linear.kernel != ""
    outcome = dumpcmp.compare(room / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline


@needs_openvino
def test_a_fault_in_the_file_is_told_at_its_node(room: Path, tmp_path: Path) -> None:
    model = onnx.load(room / "m.onnx")
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    next(each for each in norm.attribute if each.name == "epsilon").f = 0.5
    onnx.save(model, tmp_path / "wrong.onnx")
    with dumpcmp.capture_exported(tmp_path / "wrong.onnx", tmp_path / "mine") as wrong:
        wrong(X)
    outcome = dumpcmp.compare(room / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.PROGRAM, outcome.headline
    assert "norm/layer_norm" in outcome.headline


def test_kernels_are_the_same_whatever_was_made_as_they_were_compiled() -> None:
    one = [OpenVinoKernel("a", "MatMul", ("a", "Convert_1")), OpenVinoKernel("r", "Reorder", ())]
    other = [OpenVinoKernel("a", "MatMul", ("a", "Convert_7"))]
    fused = [OpenVinoKernel("b", "MatMul", ("a", "b"))]
    assert first_other_kernel(one, other, {"a", "b"}) == ""
    assert first_other_kernel(one, fused, {"a", "b"}) == "kernel MatMul 'a' is gone"


@pytest.mark.skipif(HAS_OPENVINO, reason="openvino is installed")
def test_without_openvino_the_mode_says_what_it_needs(room: Path, tmp_path: Path) -> None:
    words = ["dump", "--mode", "openvino", "--path", str(tmp_path / "mine"), str(room / "m.onnx"),
             "--inputs", str(room / "golden")]  # fmt: skip
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert "needs openvino" in ran.output
    assert "pip install openvino" in ran.output
