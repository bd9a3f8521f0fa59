"""What files a model may be made of: external data, ORT's own format, opsets, free dims."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.taps.onnx.model import OnnxModel
from dumpcmp.taps.onnx.tensors import TensorFiles
from tests.taps.onnx.recomputing import wrongs_of

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

_DRAWS = torch.Generator().manual_seed(7)
W = torch.randn(8, 8, generator=_DRAWS)
X = torch.randn(3, 8, generator=_DRAWS)
LATEST = 26  # that ONNX Runtime takes


def model_of(text: str, opset: int = 17, **weights: Tensor) -> Any:
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>\nagraph '
    model = onnx.parser.parse_model(head + text)
    for name, tensor in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
    return model


LINEAR = "(float[n,8] x) => (float[n,8] y) { h = MatMul (x, w) y = Relu (h) }"


def dumped(path: Path, out: Path, *inputs: Tensor) -> dumpcmp.Archive:
    with dumpcmp.capture_onnx(path, out) as run:
        for x in inputs:
            run.run(None, {"x": x})
    return dumpcmp.Archive(out)


def test_external_data_is_mapped_and_not_copied(tmp_path: Path) -> None:
    weight = torch.randn(1 << 18, 64)  # 64 MiB
    text = "(int64[n] x) => (float[n,64] y) { r = Gather (w, x) y = Relu (r) }"
    model = model_of(text, w=weight)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    del model
    before = anonymous_bytes()
    with OnnxModel(tmp_path / "m.onnx") as opened:
        _, values = opened.tapping.run({"x": torch.arange(5)})
        assert anonymous_bytes() - before < weight.nbytes // 2
        assert torch.equal(opened.constants["w"], weight)
    assert torch.equal(values["r"], weight[:5])


def anonymous_bytes() -> int:
    """The memory of this process that no file lies behind."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        pytest.skip("nothing tells how much memory lies behind no file")
    found = dict(line.split(":", 1) for line in lines)
    return int(found["RssAnon"].split()[0]) << 10


def test_external_data_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of(LINEAR, w=W), path, save_as_external_data=True, location="m.bin",
              size_threshold=0)  # fmt: skip
    (tmp_path / "m.bin").write_bytes((tmp_path / "m.bin").read_bytes()[:100])
    tensor = onnx.load(path, load_external_data=False).graph.initializer[0]
    with pytest.raises(CaptureError, match="has 256 bytes from 0 on in"):
        TensorFiles(tmp_path).tensor(tensor)
    with pytest.raises(CaptureError):
        dumped(path, tmp_path / "mine", X)
    assert not (tmp_path / "mine").exists()


def ort_format(source: Path, path: Path) -> Path:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return path


BRANCH = """(float[n,8] x, bool b) => (float[n,8] y) {
  ["/up/MatMul"] h = MatMul (x, w)
  y = If (b) <then_branch = one () => (float[n,8] t) { t = Relu (h) },
              else_branch = two () => (float[n,8] e) { e = Neg (h) }>
}"""


def test_a_file_in_the_format_of_ort_is_recorded_as_its_onnx(tmp_path: Path) -> None:
    onnx.save(model_of(BRANCH, w=W), tmp_path / "m.onnx")
    found = []
    for path in (tmp_path / "m.onnx", ort_format(tmp_path / "m.onnx", tmp_path / "m.ort")):
        with dumpcmp.capture_onnx(path, tmp_path / path.suffix[1:]) as run:
            (y,) = run.run(None, {"x": X, "b": torch.tensor(False)})
        archive = dumpcmp.Archive(tmp_path / path.suffix[1:])
        found.append((y.tolist(), sorted(str(call.op) for call in archive.calls.values())))
        (facts,) = archive.run.values()
        assert facts["run"]["certificate"]["holds"]
    assert found[0] == found[1]
    assert {"up/onnx.MatMul", "<root>/onnx.Neg"} <= set(found[0][1])


@pytest.mark.parametrize("keep", [0, 8, 400])
def test_a_damaged_file_of_ort_is_an_error(tmp_path: Path, keep: int) -> None:
    onnx.save(model_of(LINEAR, w=W), tmp_path / "m.onnx")
    whole = ort_format(tmp_path / "m.onnx", tmp_path / "m.ort").read_bytes()
    (tmp_path / "bad.ort").write_bytes(whole[:keep] + struct.pack("<I", 1 << 30) * 99)
    with pytest.raises(CaptureError, match="cannot load"):
        dumped(tmp_path / "bad.ort", tmp_path / "mine", X)
    assert not (tmp_path / "mine").exists()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(W, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w)


def test_free_dims_take_another_size_at_each_token(tmp_path: Path) -> None:
    inputs = [X, X[:1], torch.cat([X, X, X])]
    onnx.save(model_of(LINEAR, w=W), tmp_path / "m.onnx")
    model = Linear()
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "golden"):
        for x in inputs:
            model(x)
    archive = dumped(tmp_path / "m.onnx", tmp_path / "mine", *inputs)
    (facts,) = archive.run.values()
    assert facts["run"]["certificate"]["compared"]["output"] == 3
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline
    assert {row.key.step for row in outcome.rows} == {0, 1, 2}


def with_axes(opset: int, first: int, axes: str, name: str = "axes") -> tuple[str, str]:
    """How an op is given dims: as an attribute before opset `first`, as an input from it on."""
    if opset < first:
        return f"<{name} = [{axes}]>", ""
    return "", f", {name}_{axes.replace(', ', '_')}"


def changing_ops(opset: int) -> str:
    """A graph of ops whose arguments are others in other opsets."""
    mean, mean_input = with_axes(opset, 18, "1")
    most, most_input = with_axes(opset, 18, "0")
    halves = "<axis = 1>" if opset < 18 else "<axis = 1, num_outputs = 2>"
    norm = "c = LayerNormalization (b, scale)" if opset >= 17 else "c = Mul (b, scale)"
    act = "d = Gelu (c)" if opset >= 20 else "d = Tanh (c)"
    root = "rms = RMSNormalization (d, scale)" if opset >= 23 else "rms = Neg (d)"
    run = "last = CumProd (rms, axes_0s)" if opset >= 26 else "last = CumSum (rms, axes_0s)"
    return f"""(float[n,8] x) => (float[a] y) <int64[1] axes_1 = {{1}}, int64[1] axes_0 = {{0}},
      int64 axes_0s = {{0}}, int64[2] pads = {{0, 1}}, int64[4] around = {{0, 1, 0, 1}}> {{
      left, right = Split {halves} (x)
      b = Concat <axis = 1> (right, left)
      {norm}
      {act}
      {root}
      {run}
      padded = Pad <mode = "edge"> (last, around)
      soft = Softmax <axis = -1> (padded)
      mean = ReduceMean {mean} (soft{mean_input})
      high = ReduceMax {most} (mean{most_input})
      y = Squeeze (high, axes_0)
    }}"""


@pytest.mark.parametrize("opset", range(13, LATEST + 1))
def test_every_node_of_each_opset_is_recomputed(tmp_path: Path, opset: int) -> None:
    model = model_of(changing_ops(opset), opset, scale=torch.rand(8) + 0.5)
    onnx.save(model, tmp_path / "m.onnx")
    archive = dumped(tmp_path / "m.onnx", tmp_path / "mine", X)
    nodes = [call for call in archive.calls.values() if call.op.function]
    assert len(nodes) >= 8
    assert {call.target: wrongs_of(archive, call) for call in nodes} == {
        call.target: [] for call in nodes
    }


def test_an_opset_from_the_future_is_an_error(tmp_path: Path) -> None:
    model = model_of("(float[8] x) => (float[8] y) { y = Relu (x) }")
    model.opset_import[0].version = 99
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(CaptureError, match="cannot load"):
        dumped(tmp_path / "m.onnx", tmp_path / "mine", torch.zeros(8))


def test_inputs_of_numpy_are_never_unpickled(tmp_path: Path) -> None:
    from dumpcmp.dumping.model_inputs import inputs_from

    np.savez(tmp_path / "i.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CaptureError, match="allow_pickle"):
        inputs_from(tmp_path / "i.npz")
