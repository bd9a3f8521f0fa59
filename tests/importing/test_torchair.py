"""Trees of torchair are known by their names, and their ops are held against each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.importing.foreign import ForeignFileError
from dumpcmp.importing.ge_file import GeFile
from dumpcmp.importing.ge_graph import GeGraph, graph_in
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.outcome import Conclusion
from tests.importing.torchair_trees import Array, ge_bytes, program, write_fx, write_ge
from tests.importing.written import bits_of, imported, numbers

FX = "msit_fx_dump/worldsize1_global_rank0/graph_1/0"
GE = "msit_ge_dump/worldsize1_global_rank0/20240125/0/graph_1_9/1/0"
ADD = "<root>/add_1"
Writer = Callable[..., Path]


def fx(root: Path, name: str, fault: str = "", **options: object) -> Path:
    return write_fx(root / name, {FX: program(fault=fault)}, **options)  # type: ignore[arg-type]


def ge(root: Path, name: str, fault: str = "", **options: object) -> Path:
    return write_ge(root / name, {GE: program(fault=fault)}, **options)  # type: ignore[arg-type]


def compared(golden: Path, target: Path) -> tuple[str, str]:
    """What the comparison of both trees comes to, and the first op that is named."""
    outcome = compare(imported(golden).path, imported(target).path)
    first = outcome.first_divergence
    return str(outcome.conclusion), first.key.op if first else ""


def test_two_dumps_of_the_same_numbers_are_the_same_whenever_they_were_taken(
    tmp_path: Path,
) -> None:
    one, other = fx(tmp_path, "one"), fx(tmp_path, "other", days=3)
    assert compared(one, other) == (Conclusion.SAME, "")


@pytest.mark.parametrize("suffix", ["", "_min_max"])
@pytest.mark.parametrize("golden, target", [(fx, fx), (fx, ge), (ge, ge)])
def test_the_op_with_a_fault_is_named(
    tmp_path: Path, golden: Writer, target: Writer, suffix: str
) -> None:
    good = golden(tmp_path, "good", suffix=suffix)
    bad = target(tmp_path, "bad", "add", suffix=suffix)
    assert compared(good, bad) == (Conclusion.WRONG, ADD)


def test_numbers_in_place_of_tensors_show_no_equality(tmp_path: Path) -> None:
    one = imported(fx(tmp_path, "one", suffix="_min_max"))
    other = imported(ge(tmp_path, "other", suffix="_min_max"))
    assert compare(one.path, other.path).conclusion is Conclusion.UNKNOWN
    assert compare(one.path, other.path, partial=True).conclusion is Conclusion.SAME
    assert {key.slot for key, _ in one.items()} == {
        "input.0.min_max", "input.1.min_max", "output.0.min_max",
    }  # fmt: skip


@pytest.mark.parametrize(
    "write, directory, rank, token",
    [
        (write_fx, "msit_fx_dump/worldsize4_global_rank3/graph_1/7", 3, 7),
        (write_fx, "worldsize4_global_rank3/graph_1/0", 3, 0),
        (write_fx, "msit_fx_dump/data_dump/3/gm_20240125_dump", 0, 2),  # counted from 1
        (write_fx, "data_dump/1/gm_20240125_dump", 0, 0),
        (write_ge, "msit_ge_dump/worldsize4_global_rank3/20240125/0/graph_1/1/7", 3, 7),
        (write_ge, "msit_ge_dump/20240125/0/graph_1/1/2", 0, 2),
        (write_ge, "2", 0, 2),
    ],
)
def test_rank_and_token_are_read_from_each_layout_of_directories(
    tmp_path: Path, write: Writer, directory: str, rank: int, token: int
) -> None:
    archive = imported(write(tmp_path / "d", {directory: program()}))
    found = {(record.rank, key.step, key.model) for key, record in archive.items()}
    assert found == {(rank, token, "Model")}
    assert {str(key.op) for key, _ in archive.items()} == {"<root>/mm", ADD, "<root>/relu"}
    calls = archive.calls_at("Model", token).values()
    assert [call.op for call in calls] == ["<root>/mm", ADD, "<root>/relu"]


def test_the_order_is_that_of_the_stamps(tmp_path: Path) -> None:
    late = write_fx(tmp_path / "d", {FX: program()[::-1]})
    calls = imported(late).calls_at("Model", 0).values()
    assert [call.op for call in sorted(calls, key=lambda call: call.order)] == [
        "<root>/relu", ADD, "<root>/mm",
    ]  # fmt: skip


def test_several_graphs_keep_their_names(tmp_path: Path) -> None:
    places = {f"worldsize1_global_rank0/{name}/0": program() for name in ("prefill", "decode")}
    assert set(imported(write_fx(tmp_path / "d", places)).models) == {"prefill", "decode"}
    gms = {f"data_dump/1/gm_{stamp}_dump": program() for stamp in ("1706", "1707")}
    assert set(imported(write_fx(tmp_path / "e", gms)).models) == {"graph_0", "graph_1"}


def test_two_dumps_in_one_tree_are_told_apart_by_nobody(tmp_path: Path) -> None:
    fx(tmp_path, "both")
    with pytest.raises(SelectionError, match="FX mode in msit_fx_dump, one of GE in msit_ge_dump"):
        imported(ge(tmp_path, "both"))
    times = {f"{time}/0/graph_1/1/0": program() for time in ("2024", "2025")}
    with pytest.raises(SelectionError, match="token 0 of rank 0 twice"):
        imported(write_ge(tmp_path / "times", times))


def test_words_that_an_op_was_given_are_compared_by_their_letters(tmp_path: Path) -> None:
    def written(name: str, word: str) -> Path:
        root = fx(tmp_path, name)
        np.save(root / FX / "add_1-aten.add.Tensor.INPUT.2.20240125031118789000.npy", word)
        return root

    assert compared(written("one", "none"), written("two", "none"))[0] == Conclusion.SAME
    assert compared(written("a", "none"), written("b", "tanh"))[0] != Conclusion.SAME


def test_without_the_text_of_its_graph_ops_have_the_names_of_ge(tmp_path: Path) -> None:
    archive = imported(ge(tmp_path, "d", graph=False))
    assert {str(key.op) for key, _ in archive.items()} == {
        "<root>/MatMul", "<root>/Add_2", "<root>/Relu_4",
    }  # fmt: skip


def test_an_op_made_of_others_takes_what_the_first_takes_and_gives_what_the_last_gives(
    tmp_path: Path,
) -> None:
    root = ge(tmp_path, "d")
    mm, _, relu = program()
    for name in ("MatMul", "Add_2", "Relu_4"):
        next((root / GE).glob(f"*.{name}.*")).unlink()
    fused = root / GE / "AutomaticBufferFusionOp.MatMulAdd_2Relu_4.44.6.1706596911878000"
    fused.write_bytes(ge_bytes(mm.inputs, relu.outputs))
    archive = imported(root)
    assert {(str(key.op), str(key.slot)) for key, _ in archive.items()} == {
        ("<root>/mm", "input.0"), ("<root>/mm", "input.1"), ("<root>/relu", "output.0"),
    }  # fmt: skip
    assert compare(imported(fx(tmp_path, "golden")).path, archive.path).exit_code == 0


def test_an_output_goes_to_the_op_that_it_is_of(tmp_path: Path) -> None:
    root = ge(tmp_path, "d")
    mm, add, _ = program()
    fused = root / GE / "BatchFusion.a_name_of_its_own.44.6.1706596911879999"
    fused.write_bytes(ge_bytes(mm.inputs, add.outputs, of_op="Add_2"))
    records = imported(root).items()
    assert (ADD, 1) in {(str(key.op), key.call) for key, _ in records}


NZ = numbers((2, 5, 6))
CHANNELS = numbers((2, 20, 3, 4))


def in_tiles(value: Array, rows: int, columns: int) -> Array:
    """`value` as GE lays out rows and columns: [..., columns, rows, row, column]."""
    *batch, height, width = value.shape
    high, wide = -(-height // rows), -(-width // columns)
    padded = np.zeros((*batch, high * rows, wide * columns), value.dtype)
    padded[..., :height, :width] = value
    tiles = padded.reshape(*batch, high, rows, wide, columns)
    at = len(batch)
    return tiles.transpose(*range(at), at + 2, at, at + 1, at + 3)


def in_fives(value: Array, channels: int = 16) -> Array:
    """NCHW as NC1HWC0."""
    batch, count, height, width = value.shape
    outer = -(-count // channels)
    padded = np.zeros((batch, outer * channels, height, width), value.dtype)
    padded[:, :count] = value
    return padded.reshape(batch, outer, channels, height, width).transpose(0, 1, 3, 4, 2)


@pytest.mark.parametrize(
    "value, stored, format",
    [
        (NZ, NZ, 2),
        (NZ, in_tiles(NZ, 16, 16), 29),
        (NZ, in_tiles(NZ, 2, 4), 29),
        (CHANNELS, in_fives(CHANNELS), 3),
        (CHANNELS.transpose(0, 2, 3, 1), in_fives(CHANNELS), 3),
        (NZ, NZ, 2 | 5 << 8),  # of a format with more said of it
    ],
)
def test_tiles_are_laid_side_by_side(
    tmp_path: Path, value: Array, stored: Array, format: int
) -> None:
    path = tmp_path / "d" / "Add.Add_2.1.6.1706596911878000"
    path.parent.mkdir()
    path.write_bytes(ge_bytes((), (stored,), format=format, original=value.shape))
    ((_, bits),) = bits_of(imported(path.parent)).items()
    assert bits == np.ascontiguousarray(value).tobytes()


def test_bfloat16_comes_bit_for_bit_and_what_is_not_known_without_elements(tmp_path: Path) -> None:
    words = np.arange(6, dtype=np.float16)
    for code, name in ((27, "bfloat16"), (13, "ge.13")):
        path = tmp_path / name / "Add.Add_2.1.6.1706596911878000"
        path.parent.mkdir()
        path.write_bytes(ge_bytes((), (words,), code=code))
        ((_, record),) = imported(path.parent).items()
        assert (record.dtype, bool(record.problem)) == (name, code == 13)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x01", (1 << 40).to_bytes(8, "little"), ge_bytes((NZ,), (NZ,))[:-1],
        (3).to_bytes(8, "little") + b"\x1a\xff\x01", (2).to_bytes(8, "little") + b"\x1f\x01",
        (11).to_bytes(8, "little") + b"\x08" + b"\xff" * 10,
    ],
)  # fmt: skip
def test_bytes_that_are_no_dump_are_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "Add.Add_2.1.6.1706596911878000"
    path.write_bytes(content)
    with GeFile(path) as file, pytest.raises(ForeignFileError, match="Add_2"):
        file.listed()


def test_a_tensor_with_fewer_bytes_than_its_shape_has_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "Add.Add_2.1.6.1706596911878000"
    path.write_bytes(ge_bytes((), (NZ,), code=12))  # eight bytes an element, and four are there
    with GeFile(path) as file:
        (value,) = file.listed().values
    assert "takes 480" in value.problem


def test_what_two_texts_say_otherwise_neither_says(tmp_path: Path) -> None:
    ours = GeGraph({("Add", 0): ("add", 0), ("Mul", 0): ("mul", 0)})
    theirs = GeGraph({("Add", 0): ("sub", 0), ("Cast", 0): ("cast", 0)})
    assert dict((ours + theirs).tensors) == {("Mul", 0): ("mul", 0), ("Cast", 0): ("cast", 0)}
    text = tmp_path / "dynamo_original_g.txt"
    text.write_text("op {\n  nothing here\n}\n}\n}\n")
    assert graph_in(text, 100) == GeGraph()
    with pytest.raises(ForeignFileError, match="larger"):
        graph_in(text, 3)


def test_values_lie_in_the_archive_as_in_the_files(tmp_path: Path) -> None:
    tasks = program()
    expected = {
        f"{task.node} {kind}.{number}": value.tobytes()
        for task in tasks
        for kind, values in (("input", task.inputs), ("output", task.outputs))
        for number, value in enumerate(values)
    }
    for archive in (imported(fx(tmp_path, "a")), imported(ge(tmp_path, "b"))):
        assert _bits(archive) == expected


def _bits(archive: Archive) -> dict[str, bytes]:
    return {
        f"{key.op.function} {key.slot}": archive.load(record).bits.tobytes()
        for key, record in archive.items()
    }
