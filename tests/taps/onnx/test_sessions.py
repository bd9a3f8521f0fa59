"""Values are tapped all at once, or in turns where that would change what runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.taps.onnx import sessions
from dumpcmp.taps.onnx.blocked_images import filter_in_order, in_order
from dumpcmp.taps.onnx.capture import certificate_of
from dumpcmp.taps.onnx.model import OnnxModel
from dumpcmp.taps.onnx.places import NodePlaces
from dumpcmp.taps.onnx.sessions import OnnxSettings

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

NODES = (
    ("MatMul", ("x", "w"), "/layers.0/up/MatMul"),
    ("Softmax", ("MatMul_0",), "/layers.0/Softmax"),
    ("Exp", ("Softmax_1",), "/Exp"),
    ("Neg", ("Exp_2",), "/Neg"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [
        onnx.helper.make_node(op, inputs, [f"{op}_{at}" if at < 3 else "y"], name)
        for at, (op, inputs, name) in enumerate(NODES)
    ]
    kind = onnx.TensorProto.FLOAT
    weight = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).numpy()
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, [None, 4])],
        [onnx.helper.make_tensor_value_info("y", kind, [None, 3])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx"
    )
    return tmp_path / "m.onnx"


def test_all_values_come_from_one_session_which_is_certified(path: Path) -> None:
    with OnnxModel(path) as model:
        outputs, values = model.tapping.run({"x": torch.ones(2, 4)})
        assert len(model.tapping.turns or ()) == 1
        assert set(values) == {"MatMul_0", "Softmax_1", "Exp_2", "y"}
        assert torch.equal(outputs["y"], -values["Softmax_1"].exp())
        assert certificate_of(model)["holds"]


def test_what_disturbs_the_run_is_tapped_in_turns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    plain = sessions.first_other_node

    def disturbed(one: Sequence[Any], other: Sequence[Any]) -> str:
        asked.append(len(other))
        return "node Exp is gone" if len(asked) == 1 else plain(one, other)

    monkeypatch.setattr(sessions, "first_other_node", disturbed)
    with OnnxModel(path) as model:
        _, values = model.tapping.run({"x": torch.ones(2, 4)})
        _, again = model.tapping.run({"x": torch.ones(2, 4)})
        assert len(model.tapping.turns or ()) == 2
        assert set(values) == set(again) == {"MatMul_0", "Softmax_1", "Exp_2", "y"}
        assert "in 2 turns" in certificate_of(model)["text"]


def test_what_can_never_be_tapped_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sessions._differing

    def differing(outputs: Any, given: Any) -> list[str]:
        return ["y"] if "Exp_2" in given else plain(outputs, given)

    monkeypatch.setattr(sessions, "_differing", differing)
    with OnnxModel(path) as model:
        _, values = model.tapping.run({"x": torch.ones(2, 4)})
        assert "Exp_2" not in values
        assert model.tapping.untapped == {"Exp_2": "with it tapped, y is another"}


@pytest.mark.parametrize("level", ["off", "basic", "extended"])
def test_each_level_of_optimisation_runs(path: Path, level: str) -> None:
    with OnnxModel(path, OnnxSettings(level=level)) as model:
        assert model(torch.ones(2, 4)).shape == (2, 3)


def test_inputs_that_do_not_fit_are_errors(path: Path) -> None:
    with OnnxModel(path) as model:
        with pytest.raises(CaptureError, match="x was not given"):
            model()
        with pytest.raises(CaptureError, match="is float32, and what was given is int64"):
            model(torch.ones(2, 4, dtype=torch.int64))


def test_names_of_nodes_tell_their_modules(path: Path) -> None:
    places = NodePlaces.of(onnx.load(path))
    assert [places.by_node[name].path for _, _, name in NODES] == [
        "layers.0.up",
        "layers.0",
        "",
        "",
    ]


@pytest.mark.parametrize("block", [4, 8, 16])
def test_blocks_of_channels_are_put_in_order(block: int) -> None:
    plain = torch.randn(2, 2 * block, 3, 5)
    blocked = plain.reshape(2, 2, block, 3, 5).movedim(2, -1).reshape(plain.shape)
    assert torch.equal(in_order(blocked, block), plain)
    weight = torch.randn(block, 2 * block, 3, 3)
    both = weight.reshape(1, block, 2, block, 3, 3).permute(0, 2, 4, 5, 3, 1).reshape(weight.shape)
    assert torch.equal(filter_in_order(both, block, True), weight)
    one = weight.reshape(1, block, 2 * block, 3, 3).movedim(1, -1).reshape(weight.shape)
    assert torch.equal(filter_in_order(one, block, False), weight)
