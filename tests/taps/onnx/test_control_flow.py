"""Nodes inside of If, Loop and Scan are calls, as often as they run; their values are exact."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.taps.onnx import control_flow
from dumpcmp.taps.onnx.control_flow import NodeRun
from dumpcmp.taps.onnx.model import OnnxModel
from dumpcmp.taps.onnx.places import NodePlaces

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
W = torch.randn(4, 4, generator=torch.Generator().manual_seed(4)) / 2
_HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>\nagraph '
LOOP = """(float[3,4] x) => (float[3,4] y, float[n,3,4] rows)
<int64 m = {3}, bool yes = {1}, float limit = {0.0}, float half = {0.5}> {
  [first] start = Relu (x)
  [Loop] y, rows = Loop (m, yes, start) <body = inner (int64 i, bool c, float[3,4] h)
    => (bool keep, float[3,4] g, float[3,4] row) {
      [product] p = MatMul (h, w)
      [squash] g = Tanh (p)
      [total] s = ReduceSum <keepdims = 0> (g)
      [test] b = Greater (s, limit)
      [If] row = If (b) <then_branch = one () => (float[3,4] t) { [less] t = Sub (g, half) },
                        else_branch = two () => (float[3,4] e) { [more] e = Mul (g, half) }>
      [keep] keep = Identity (c)
    }>
}"""
SCAN = """(float[3,4] x) => (float[4] last, float[k,4] rows)
<float[4] zero = {0.0, 0.0, 0.0, 0.0}> {
  [Scan] last, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1],
                            scan_output_directions = [1], body = inner (float[4] h, float[4] r)
    => (float[4] g, float[4] out) {
      [product] p = MatMul (h, w)
      [sum] s = Add (p, r)
      [squash] g = Tanh (s)
      [out] out = Neg (g)
    }> (zero, x)
}"""


class Looping(nn.Module):
    """What LOOP computes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(W.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        h, rows = torch.relu(x), []
        for _ in range(3):
            h = torch.tanh(h @ self.w)
            rows.append(h - 0.5 if h.sum() > 0 else h * 0.5)
        return h, torch.stack(rows)


class Scanning(nn.Module):
    """What SCAN computes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(W.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        h, rows = torch.zeros(4), []
        for row in x.flip(0):
            h = torch.tanh(h @ self.w + row)
            rows.append(-h)
        return h, torch.stack(rows[::-1])


def written(text: str, path: Path, opset: int = 17, change: Any = None) -> Path:
    """The model that `text` says, with W as its weight."""
    model = onnx.parser.parse_model(_HEAD.replace("{opset}", str(opset)) + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(W.numpy(), "w"))
    if change is not None:
        change(model.graph)
    onnx.save(model, path)
    return path


def runs_of(path: Path, x: Tensor) -> tuple[list[NodeRun], dict[str, Tensor], OnnxModel]:
    with OnnxModel(path) as model:
        outputs, tapped = model.tapping.run({"x": x})
        values = ChainMap({**model.constants, "x": x, **outputs, **tapped})
        return model.unroller.runs(model.nodes, values), outputs, model


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["loop", "scan"])
def test_each_node_of_a_body_is_a_call_for_each_iteration(
    tmp_path: Path, text: str, opset: int
) -> None:
    runs, outputs, model = runs_of(written(text, tmp_path / "m.onnx", opset), X)
    ops = [run.node.op for run in runs]
    assert not model.unroller.problems
    assert ops.count("Tanh") == 3
    assert "If" not in ops
    values = {id(made) for run in runs for made in run.outputs}
    known = {id(each) for each in model.all_constants()}
    for run in runs:  # each takes what another gave, or a leaf of the run
        for taken in run.inputs:
            is_leaf = taken is not None and (taken.numel() == 1 or taken.shape == X.shape)
            assert id(taken) in values | known or is_leaf
    last = [run for run in runs if run.node.op in ("Loop", "Scan")]
    assert len(last) == 1
    assert last[0].outputs[0] is not None
    assert torch.equal(last[0].outputs[0], outputs["rows"])


@pytest.mark.parametrize("text, kind", [(LOOP, Looping), (SCAN, Scanning)], ids=["loop", "scan"])
def test_a_sound_loop_is_the_same_as_that_of_python(
    tmp_path: Path, text: str, kind: Callable[[], nn.Module]
) -> None:
    model = kind()
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "golden"):
        model(X)
    with dumpcmp.capture_onnx(written(text, tmp_path / "m.onnx"), tmp_path / "mine") as run:
        run.run(None, {"x": X})
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.SAME, outcome.headline


def swapped(graph: Any) -> None:
    """Subtract the other way round, in a branch in the loop."""
    body = next(node for node in graph.node if node.op_type == "Loop").attribute[0].g
    branch = next(node for node in body.node if node.op_type == "If")
    for each in branch.attribute:
        node = each.g.node[0]
        if node.op_type == "Sub":
            node.input[0], node.input[1] = node.input[1], node.input[0]


def test_a_fault_inside_of_a_body_is_told_at_its_node(tmp_path: Path) -> None:
    model = Looping()
    x = X.abs()
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "golden"):
        model(x)
    file = written(LOOP, tmp_path / "m.onnx", change=swapped)
    with dumpcmp.capture_onnx(file, tmp_path / "mine") as run:
        run.run(None, {"x": x})
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.conclusion is Conclusion.PROGRAM, outcome.headline
    assert outcome.first_divergence is not None
    mine = outcome.first_divergence.target_key
    assert mine is not None and mine.op.function == "onnx.Sub", outcome.headline


def no_iteration(graph: Any) -> None:
    tensor = next(each for each in graph.initializer if each.name == "m")
    tensor.CopyFrom(onnx.helper.make_tensor("m", onnx.TensorProto.INT64, [], [0]))


def test_a_loop_without_iterations_stays_one_call_and_is_named(tmp_path: Path) -> None:
    runs, _, model = runs_of(written(LOOP, tmp_path / "m.onnx", change=no_iteration), X)
    assert "Loop" in [run.node.op for run in runs]
    assert model.unroller.problems == {
        "Loop": "it has no iteration, and nothing tells the shape of its output"
    }


def test_a_body_that_gives_other_bits_stays_one_call_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_flow, "same_bits", lambda one, other: False)
    runs, _, model = runs_of(written(SCAN, tmp_path / "m.onnx"), X)
    assert [run.node.op for run in runs] == ["Scan"]
    assert model.unroller.problems == {"Scan": "its body, run alone, gives another last"}


def test_nodes_of_a_body_without_scopes_stand_where_their_weights_do(tmp_path: Path) -> None:
    def scoped(graph: Any) -> None:
        body = next(node for node in graph.node if node.op_type == "Scan").attribute
        inner = next(each.g for each in body if each.HasField("g"))
        for node in inner.node:
            entry = node.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['product']"
        inner.node[0].input[1] = "cell.weight"
        graph.initializer[-1].name = "cell.weight"

    path = written(SCAN, tmp_path / "m.onnx", change=scoped)
    places = NodePlaces.of(onnx.load(path))
    assert places.by_node["product"].path == "cell"
    assert places.by_node["squash"].path == ""
