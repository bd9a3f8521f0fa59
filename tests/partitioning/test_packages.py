"""Hostile ``.pt2`` files: refused by the entry's name, and nothing in them is executed."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dumpcmp.cli import main
from dumpcmp.partitioning import PartitionError, verify_graph
from dumpcmp.partitioning.exported import ops_of, read_exported

Entries = dict[str, bytes]
MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))[: x.shape[0] // 2] + self.constant


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    rows = torch.export.Dim("half", min=2, max=64) * 2
    return torch.export.export(Small(), (torch.randn(8, 6),), dynamic_shapes=({0: rows},))


class Hostile:
    """Makes a file when it is unpickled in the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def edited(name: str, change: Callable[[Any], None]) -> Callable[[Entries, Path], None]:
    def edit(entries: Entries, _touched: Path) -> None:
        content = json.loads(entries[name])
        change(content)
        entries[name] = json.dumps(content).encode()

    return edit


def samples(entries: Entries, touched: Path) -> None:
    entries[SAMPLES] = saved(((Hostile(touched),), {}))


def plain_samples(entries: Entries, touched: Path) -> None:
    entries[SAMPLES] = pickle.dumps(((Hostile(touched),), {}))


def payload(config: str, entry: str) -> Callable[[Entries, Path], None]:
    def edit(entries: Entries, touched: Path) -> None:
        entries[entry] = saved(Hostile(touched))
        content = json.loads(entries[config])
        first = next(iter(content["config"].values()))
        first |= {"path_name": Path(entry).name, "use_pickle": True}
        entries[config] = json.dumps(content).encode()

    return edit


def added(name: str) -> Callable[[Entries, Path], None]:
    def edit(entries: Entries, touched: Path) -> None:
        entries[name] = pickle.dumps(Hostile(touched))

    return edit


def expression(text: str) -> Callable[[Entries, Path], None]:
    def edit(entries: Entries, touched: Path) -> None:
        content = json.loads(entries[MODEL])
        sizes = content["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = text.replace("TOUCHED", str(touched))
        entries[MODEL] = json.dumps(content).encode()

    return edit


def named(entries: Entries, touched: Path) -> None:
    """A placeholder's name becomes source of a function that torch executes."""
    name = f"x=__import__('os').system('touch {touched}')"
    text = entries[MODEL].decode()
    entries[MODEL] = text.replace('"x"', json.dumps(name)).encode()


def target(text: str) -> Callable[[Entries, Path], None]:
    def edit(entries: Entries, _touched: Path) -> None:
        entries[MODEL] = entries[MODEL].replace(b"torch.ops.aten.relu.default", text.encode())

    return edit


CASES = {
    "sample inputs": (samples, SAMPLES),
    "plain pickle": (plain_samples, SAMPLES),
    "weight": (payload(WEIGHTS, "data/weights/weight_0"), "data/weights/weight_0"),
    "weight elsewhere": (payload(WEIGHTS, "data/weights/other"), "data/weights/other"),
    "constant": (payload(CONSTANTS, "data/constants/tensor_0"), "data/constants/tensor_0"),
    "opaque": (added("data/constants/opaque_obj_0"), "data/constants/opaque_obj_0"),
    "custom": (added("data/constants/custom_obj_0"), "data/constants/custom_obj_0"),
    "old weights": (added("data/weights/model.pt"), "data/weights/model.pt"),
    "old constants": (added("data/constants/model.pt"), "data/constants/model.pt"),
    "older": (added("serialized_state_dict.pt"), "serialized_state_dict.pt"),
    "library": (added("data/aotinductor/model/a.so"), "data/aotinductor/model/a.so"),
    "evaluated": (expression("__import__('os').system('touch TOUCHED')"), MODEL),
    "attribute": (expression("Integer(1).__class__"), MODEL),
    "endless": (expression("Pow(Pow(Integer(9), Integer(64)), Integer(64))"), MODEL),
    "high": (expression("9**9**9**9"), MODEL),
    "source": (named, MODEL),
    "attributes": (target("torch.os.system"), MODEL),
    "long chain": (target("torch.ops.aten.relu.default.__call__.__func__"), MODEL),
}  # fmt: skip


def rewritten(
    program: torch.export.ExportedProgram, path: Path, edit: Callable[[Entries], None]
) -> None:
    """Write `program` to `path` with its entries changed by `edit`."""
    torch.export.save(program, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    edit(entries)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"{path.stem}/{name}", content)


def verify(path: Path, outdir: Path) -> Any:
    return CliRunner().invoke(main, ["verify-graph", "--graph", str(path), "--outdir", str(outdir)])


@pytest.mark.parametrize("case", CASES)
def test_what_loading_would_execute_is_refused_by_name(
    case: str, program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    edit, entry = CASES[case]
    touched, path = tmp_path / "touched", tmp_path / "model.pt2"
    rewritten(program, path, lambda entries: edit(entries, touched))
    told = verify(path, tmp_path / "out")
    assert not touched.exists()
    assert told.exit_code == 2, told.output
    said = told.output.replace("\n", "").replace(" ", "")
    assert entry in said
    assert "model.pt2isnotloaded" in said


def test_a_tree_that_would_be_imported_is_not_looked_at(
    program: torch.export.ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    context = json.dumps({"__enum__": True, "fqn": "hostile_module:A", "name": "b"})
    tree = json.dumps([1, {"type": "builtins.list", "context": context, "children_spec": []}])

    def change(content: Any) -> None:
        content["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = tree
        content["guards_code"] = ["raise SystemExit"]

    path = tmp_path / "model.pt2"
    rewritten(program, path, lambda entries: edited(MODEL, change)(entries, tmp_path))
    assert [op.call for op in read_exported(path)] == [op.call for op in ops_of(program)]


def test_a_bomb_is_refused_before_it_is_unpacked(
    program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data/weights/weight_9", bytes(1 << 24))
    told = verify(path, tmp_path / "out")
    assert told.exit_code == 2
    assert "weight_9" in told.output
    assert "more than it can" in " ".join(told.output.split())


def test_a_nested_bomb_is_refused(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    def edit(entries: Entries) -> None:
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(1 << 24))
        entries[SAMPLES] = inner.getvalue()

    path = tmp_path / "model.pt2"
    rewritten(program, path, edit)
    told = verify(path, tmp_path / "out")
    assert told.exit_code == 2
    assert "data.pkl" in told.output


def test_the_clean_copy_has_the_same_ops(
    program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    assert read_exported(path) == ops_of(torch.export.load(path))


@pytest.mark.parametrize("name", ["graph.ckp", "model.pt2"])
def test_what_is_no_regular_file_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    told = verify(tmp_path / name, tmp_path / "out")
    assert told.exit_code == 2
    assert "is not a regular file" in " ".join(told.output.split())


def test_a_memory_that_is_no_regular_file_is_refused(
    program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "verified.jsonl")
    with pytest.raises(PartitionError, match="not a regular file"):
        verify_graph(program, tmp_path)
