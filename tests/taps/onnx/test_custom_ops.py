"""A library of custom ops runs by the explicit flag alone; a wrong kernel of it is named."""

from __future__ import annotations

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
from dumpcmp.replay import references

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from benchmarks.exported import custom_ops  # noqa: E402 - it needs onnx
from tests.taps.onnx.recomputing import wrongs_of  # noqa: E402

pytestmark = pytest.mark.skipif(custom_ops.compiler() is None, reason="there is no C compiler")
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(F.gelu(self.up(x)))
        return made


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("custom")
    model = Layer().eval()
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(X)
    weights = [onnx.numpy_helper.from_array(p.detach().numpy(), n)
               for n, p in model.named_parameters()]  # fmt: skip
    graph = """<ir_version: 8, opset_import: ["" : 20]> agraph (float[5,4] x) => (float[5,4] y) {
      ["/up/Gemm"] h = Gemm <transB = 1> (x, "up.weight", "up.bias")
      ["/Gelu"] g = Gelu (h)
      ["/down/Gemm"] y = Gemm <transB = 1> (g, "down.weight", "down.bias")
    }"""
    made = onnx.parser.parse_model(graph)
    made.graph.initializer.extend(weights)
    onnx.save(made, room / "m.onnx")
    return room


@pytest.fixture
def library(room: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(references, "_REFERENCES", dict(references._REFERENCES))
    return custom_ops.library(room)


def with_custom_op(room: Path, path: Path, fault: int) -> Path:
    model: Any = onnx.load(room / "m.onnx")
    (node,) = custom_ops.replaceable(model)
    assert node.name == "/Gelu"
    custom_ops.use_custom_op(node, fault)
    custom_ops.import_domain(model)
    onnx.save(model, path)
    return path


def dumped(model: Path, path: Path, golden: Path, *words: str) -> Any:
    return CliRunner().invoke(
        main,
        ["dump", "--mode", "onnx", "--path", str(path), str(model), "--inputs", str(golden),
         *words],
    )  # fmt: skip


def test_no_library_is_loaded_that_was_not_named(room: Path, tmp_path: Path) -> None:
    model = with_custom_op(room, tmp_path / "m.onnx", 0)
    ran = dumped(model, tmp_path / "mine", room / "golden")
    assert ran.exit_code == 2
    assert "--custom-ops lib.so" in ran.output
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("fault", range(custom_ops.NUM_FAULTS + 1))
def test_a_kernel_is_wrong_where_it_has_a_fault_and_nowhere_else(
    fault: int, room: Path, library: Path, tmp_path: Path
) -> None:
    model = with_custom_op(room, tmp_path / "m.onnx", fault)
    ran = dumped(model, tmp_path / "mine", room / "golden", "--custom-ops", str(library))
    assert ran.exit_code == 0, ran.output
    (facts,) = dumpcmp.Archive(tmp_path / "mine").run.values()
    assert facts["run"]["certificate"]["holds"]
    assert facts["run"]["onnxruntime"]["custom_ops"] == [library.name]
    archive = dumpcmp.Archive(tmp_path / "mine")
    nodes = [call for call in archive.calls.values() if "::" in call.target]
    assert len(nodes) == 3
    for node in nodes:
        is_wrong = bool(fault) and node.target == "custom::Gelu.1"
        assert bool(wrongs_of(archive, node)) is is_wrong, node.target
    outcome = dumpcmp.compare(room / "golden", tmp_path / "mine")
    expected = Conclusion.WRONG if fault else Conclusion.SAME
    assert outcome.conclusion is expected, outcome.headline
