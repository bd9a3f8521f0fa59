"""An exported program is a run like others: captured, certified, compared."""

from __future__ import annotations

import random
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
from dumpcmp.reproducing.statements import Statement

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from benchmarks.exported.exporter_bugs import BUGS as ALL_BUGS  # noqa: E402 - it needs onnx
from benchmarks.exported.exporter_bugs import ExporterBug  # noqa: E402
from benchmarks.exported.faults import dump_with_wrong_kernel  # noqa: E402
from benchmarks.exported.running import dumped, export  # noqa: E402
from benchmarks.exported.subjects import Subject  # noqa: E402

BUGS = [bug for bug in ALL_BUGS if bug.exporter == "script"]  # the other exporter is slower


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        result: Tensor = self.out(made.transpose(1, 2).reshape(x.shape))
        return result


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.norm, self.attn = nn.Embedding(30, 16), nn.LayerNorm(16), Attention()
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 30)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        x = x + self.attn(self.norm(x))
        result: Tensor = self.head(x + self.down(F.gelu(self.up(x))))
        return result


IDS = torch.arange(10).reshape(1, 10)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A golden dump, and the model as both exporters of torch write it."""
    room = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    model = Decoder().eval()
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(IDS)
    program = torch.onnx.export(model, (IDS,), dynamo=True, verbose=False)
    assert program is not None
    program.save(room / "dynamo.onnx")
    torch.onnx.export(model, (IDS,), str(room / "script.onnx"), dynamo=False, opset_version=17)
    return {path.stem: path for path in room.iterdir()}


def captured(model: Path, path: Path, **told: Any) -> Path:
    with dumpcmp.capture_onnx(model, path, **told) as run:
        feeds = {run.model.inputs[0].name: IDS}
        run.run(None, feeds)
    return path


def altered(source: Path, path: Path, change: Any) -> Path:
    model = onnx.load(source)
    change(model.graph)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("exporter", ["dynamo", "script"])
def test_a_sound_export_is_the_same_and_certified(
    exported: dict[str, Path], exporter: str, tmp_path: Path
) -> None:
    mine = captured(exported[exporter], tmp_path / "mine")
    outcome = dumpcmp.compare(exported["golden"], mine)
    assert outcome.conclusion is Conclusion.SAME, outcome.headline
    (facts,) = dumpcmp.Archive(mine).run.values()
    assert facts["run"]["certificate"]["holds"]


def negated_axis(graph: Any) -> None:
    node = next(n for n in graph.node if n.op_type == "Softmax")
    node.attribute[0].i = -2


def larger_weight(graph: Any) -> None:
    weight = next(t for t in graph.initializer if t.name == "up.bias")
    array = onnx.numpy_helper.to_array(weight) * np.float32(1.5)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


def other_epsilon(graph: Any) -> None:
    node = next(n for n in graph.node if n.op_type == "LayerNormalization")
    next(a for a in node.attribute if a.name == "epsilon").f = 1e-2


@pytest.mark.parametrize(
    "change, conclusion, place",
    [
        (negated_axis, Conclusion.PROGRAM, "attn"),
        (larger_weight, Conclusion.PROGRAM, "up"),
        (other_epsilon, Conclusion.PROGRAM, "norm"),
    ],
    ids=["axis", "initialiser", "epsilon"],
)
def test_a_fault_in_the_protobuf_is_told_at_its_node(
    exported: dict[str, Path], tmp_path: Path, change: Any, conclusion: Conclusion, place: str
) -> None:
    model = altered(exported["dynamo"], tmp_path / "faulty.onnx", change)
    outcome = dumpcmp.compare(exported["golden"], captured(model, tmp_path / "mine"))
    assert outcome.exit_code == 1
    assert outcome.conclusion is conclusion, outcome.headline
    assert outcome.first_divergence is not None
    assert place in str(outcome.first_divergence.key.op), outcome.headline


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.exporter}: {bug.name}")
def test_a_bug_of_an_exporter_is_told_at_its_op(bug: ExporterBug, tmp_path: Path) -> None:
    subject = Subject(bug.name, "bug", bug.build, bug.exporter, opset=17)
    found = export(subject, tmp_path)
    outcome = dumpcmp.compare(found.golden, dumped(found.golden, found.model, tmp_path / "mine"))
    assert outcome.conclusion is Conclusion.PROGRAM, outcome.headline
    assert outcome.first_divergence is not None
    assert outcome.first_divergence.key.op.module == "op", outcome.headline


def test_the_command_takes_inputs_of_golden_or_of_numpy(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "inputs.npz", ids=IDS.numpy())
    model = str(exported["dynamo"])
    for number, source in enumerate((exported["golden"], tmp_path / "inputs.npz")):
        path = str(tmp_path / f"mine{number}")
        words = ["dump", "--mode", "onnx", "--path", path, model, "--inputs", str(source)]
        ran = CliRunner().invoke(main, words)
        assert ran.exit_code == 0, ran.output
        assert "certified:" in ran.output


def outside(graph: Any) -> None:
    from onnx.external_data_helper import set_external_data

    tensor = next(t for t in graph.initializer if t.raw_data)
    set_external_data(tensor, "../secret.bin")
    tensor.ClearField("raw_data")


def custom(graph: Any) -> None:
    graph.node[0].domain = "mine"


@pytest.mark.parametrize(
    "change, said",
    [
        (outside, "outside of the directory"),
        (custom, "cannot load"),
        (lambda graph: graph.ClearField("node"), "no ONNX model"),
        (lambda graph: graph.node[0].input.pop(), "cannot load"),
    ],
    ids=["external", "custom op", "empty", "input"],
)
def test_hostile_models_are_errors(
    exported: dict[str, Path], tmp_path: Path, change: Any, said: str
) -> None:
    model = onnx.load(exported["dynamo"])
    change(model.graph)
    path = tmp_path / "hostile.onnx"
    path.write_bytes(model.SerializeToString())
    with (
        pytest.raises(dumpcmp.CaptureError, match=said),
        dumpcmp.capture_onnx(path, tmp_path / "mine"),
    ):
        pass
    assert not (tmp_path / "mine").exists()


def test_bytes_that_are_no_protobuf_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "noise.onnx"
    path.write_bytes(b"\xff" * 999)
    with (
        pytest.raises(dumpcmp.CaptureError, match="no ONNX model"),
        dumpcmp.capture_onnx(path, tmp_path / "mine"),
    ):
        pass


def test_a_live_session_is_wrapped(exported: dict[str, Path], tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(
        str(exported["dynamo"]), providers=["CPUExecutionProvider"]
    )
    with dumpcmp.capture_onnx(session, tmp_path / "mine") as run:
        (made,) = run.run(None, {"ids": IDS.numpy()})
    assert np.array_equal(made, session.run(None, {"ids": IDS.numpy()})[0])
    (facts,) = dumpcmp.Archive(tmp_path / "mine").run.values()
    assert facts["run"]["certificate"]["holds"]


def test_verify_takes_the_path_of_a_model(exported: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    report = dumpcmp.verify([IDS], model, exported["dynamo"])
    assert report.passed
    faulty = altered(exported["dynamo"], tmp_path / "faulty.onnx", larger_weight)
    with pytest.raises(dumpcmp.VerificationError):
        dumpcmp.verify([IDS], model, str(faulty))


def test_a_wrong_kernel_is_told_at_its_node(exported: dict[str, Path], tmp_path: Path) -> None:
    fault = dump_with_wrong_kernel(
        exported["golden"], exported["dynamo"], tmp_path / "mine", random.Random(1)
    )
    outcome = dumpcmp.compare(exported["golden"], tmp_path / "mine")
    assert outcome.conclusion is Conclusion.WRONG, outcome.headline
    assert outcome.first_divergence is not None
    key = outcome.first_divergence.target_key
    assert key is not None
    assert dumpcmp.Archive(tmp_path / "mine").calls[key.site].source.endswith(fault.node)


def test_no_script_is_written_of_a_node(exported: dict[str, Path], tmp_path: Path) -> None:
    captured(exported["dynamo"], tmp_path / "mine")
    calls = dumpcmp.Archive(tmp_path / "mine").calls.values()
    node = next(call for call in calls if "::" in call.target)
    with pytest.raises(dumpcmp.DumpcmpError, match="no function that a script could call"):
        Statement(node, {}, {})
