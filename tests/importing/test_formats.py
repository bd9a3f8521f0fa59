"""What other tools have written comes into the archive bit for bit, under the names it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.execute import SerialExecutor
from dumpcmp.importing import bringing, import_dump
from dumpcmp.importing.gathering import find, gather
from dumpcmp.nouns.errors import ArchiveError, EngineError
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.value import DTYPES
from tests.archive.values import SMALL_NUMBERS
from tests.importing.written import TENSORS, bits_of, imported, numbers, save_safetensors

NUMPY = {name: bits for name, bits in SMALL_NUMBERS.items() if not DTYPES[name].lies_in_integers}


def expected(names: Iterable[str]) -> dict[str, bytes]:
    return {name: SMALL_NUMBERS[name].tobytes() for name in names}


def by_op(archive: Archive) -> dict[str, bytes]:
    return {key.op: archive.load(record).bits.tobytes() for key, record in archive.items()}


def test_safetensors_of_every_dtype(tmp_path: Path) -> None:
    tensors = {name: each for name, each in TENSORS.items() if name != "complex128"}
    save_safetensors(tensors, tmp_path / "d.safetensors", {"who": "someone"})
    archive = imported(tmp_path / "d.safetensors")
    assert by_op(archive) == expected(tensors)
    assert {key.op: record.dtype for key, record in archive.items()} == {n: n for n in tensors}
    assert archive.complete and audit(archive.path).sound


def test_torch_files_of_every_dtype(tmp_path: Path) -> None:
    torch.save(dict(TENSORS), tmp_path / "d.pt")
    assert by_op(imported(tmp_path / "d.pt")) == expected(TENSORS)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_every_dtype(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "d.npz", **NUMPY)
    assert by_op(imported(tmp_path / "d.npz")) == expected(NUMPY)


def test_npy_of_every_dtype(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, bits in NUMPY.items():
        np.save(tmp_path / "d" / f"{name}.npy", bits)
    assert by_op(imported(tmp_path / "d")) == expected(NUMPY)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_columns_first_and_the_most_significant_byte_first(tmp_path: Path, suffix: str) -> None:
    bits = numbers((3, 4, 5))
    odd = np.asfortranarray(bits).astype(">f4")
    if suffix == "npy":
        np.save(tmp_path / "d.npy", odd)
    else:
        np.savez(tmp_path / "d.npz", d=odd)
    archive = imported(tmp_path / f"d.{suffix}")
    ((key, record),) = archive.items()
    assert archive.load(record).bits.tolist() == bits.tolist()
    assert (key.op, record.shape) == ("d", (3, 4, 5))


def test_large_values_and_none_and_numbers(tmp_path: Path) -> None:
    large, empty = numbers((700, 1000)), numbers((0, 3))
    torch.save(
        {"a": [torch.from_numpy(large).t(), {"b": torch.from_numpy(empty)}], "n": 3, "x": 0.5,
         "said": "hello"},
        tmp_path / "d.pt",
    )  # fmt: skip
    archive = imported(tmp_path / "d.pt")
    found = {str(key.op): archive.load(record).bits for key, record in archive.items()}
    assert found["a.0"].tobytes() == np.ascontiguousarray(large.T).tobytes()
    assert found["a.1.b"].shape == (0, 3)
    assert (found["n"].tolist(), found["x"].tolist()) == (3, 0.5)


def test_steps_and_ranks_are_read_from_paths(tmp_path: Path) -> None:
    for step in range(2):
        for rank in range(3):
            place = tmp_path / "d" / f"step{step}" / f"rank{rank}"
            place.mkdir(parents=True)
            np.save(place / "layers.0.attn.output.0.npy", np.array([step, rank]))
    archive = imported(tmp_path / "d")
    assert (archive.world_size, list(archive.steps("Model")), archive.complete) == (3, [0, 1], True)
    shards = archive.shards_at("Model", 1)
    ((key, records),) = shards.items()
    assert (key.op, key.slot) == ("layers.0.attn", "output.0")
    assert [archive.load(record).bits.tolist() for record in records] == [[1, r] for r in range(3)]


def test_a_step_of_many_bytes_becomes_several_parts_and_jobs_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "MOST_NBYTES", 1000)
    save_safetensors(
        {f"layers.{i}": torch.full((100,), i) for i in range(12)}, tmp_path / "d.safetensors"
    )
    alone = imported(tmp_path / "d.safetensors")
    with ThreadPoolExecutor(2) as executor:
        import_dump(tmp_path / "d.safetensors", tmp_path / "shared", executor=executor)
    assert len(list(alone.path.rglob("part-*.h5"))) == 12
    assert compare(alone.path, tmp_path / "shared").exit_code == 0
    order = {call.order: call.op for call in alone.calls_at("Model", 0).values()}
    assert order == {i: f"layers.{i}" for i in range(12)}


def test_a_worker_that_does_not_see_the_archive_writes_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers((2,)))
    files = find(tmp_path / "a.npy", "npy")
    titled = gather(files, None, SerialExecutor())
    (task,) = bringing.planned(titled, tmp_path / "elsewhere", "npy", "Model")
    with pytest.raises(EngineError, match="does not see"):
        bringing.write_part(task)
    assert not (tmp_path / "elsewhere").exists()


def test_what_has_no_dense_elements_is_told_and_not_left_out(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    torch.save({"sparse": sparse, "dense": torch.ones(2)}, tmp_path / "d.pt")
    done = import_dump(tmp_path / "d.pt", tmp_path / "out")
    kept = {key.op: record.kept for key, record in Archive(tmp_path / "out").items()}
    assert kept == {"sparse": Kept.NOTHING, "dense": Kept.FULL}
    assert "sparse_coo tensors have no dense bytes" in done.problems[0]


def test_files_of_no_known_kind_are_named(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "a.npy", numbers((2,)))
    (tmp_path / "d" / "notes.txt").write_text("hello")
    assert import_dump(tmp_path / "d", tmp_path / "out").left_out == ("notes.txt",)


def test_a_run_is_not_replaced_unasked(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers((2,)))
    import_dump(tmp_path / "a.npy", tmp_path / "out")
    with pytest.raises(ArchiveError, match="already holds a run"):
        import_dump(tmp_path / "a.npy", tmp_path / "out")
    np.save(tmp_path / "a.npy", numbers((3,)))
    import_dump(tmp_path / "a.npy", tmp_path / "out", overwrite=True)
    (record,) = imported(tmp_path / "a.npy").values()
    assert record.shape == (3,)


def test_names_that_several_files_have_begin_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("one", "two"):
        save_safetensors({"out": torch.ones(1)}, tmp_path / "d" / f"{name}.safetensors")
    assert [key.op for key in imported(tmp_path / "d")] == ["one/out", "two/out"]


def test_an_imported_run_is_compared_as_any_other(tmp_path: Path) -> None:
    tensors = {f"layers.{i}": torch.from_numpy(numbers((4, 8), i)) for i in range(6)}
    save_safetensors(tensors, tmp_path / "golden.safetensors")
    torch.save(tensors, tmp_path / "mine.pt")
    golden, mine = imported(tmp_path / "golden.safetensors"), imported(tmp_path / "mine.pt")
    assert compare(golden.path, mine.path).exit_code == 0
    tensors["layers.3"] = tensors["layers.3"] * 1.01
    torch.save(tensors, tmp_path / "wrong.pt")
    outcome = compare(golden.path, imported(tmp_path / "wrong.pt").path)
    assert outcome.exit_code == 1
    assert [row.key.op for row in outcome.failures] == ["layers.3"]


def test_from_a_store_into_a_store(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    save_safetensors({"a": TENSORS["bfloat16"]}, tmp_path / "a.safetensors")
    torch.save({"b": TENSORS["float16"]}, tmp_path / "b.pt")
    np.savez(tmp_path / "c.npz", c=SMALL_NUMBERS["int16"])
    np.save(tmp_path / "d.npy", SMALL_NUMBERS["float64"])
    memory.put(str(tmp_path), "/foreign", recursive=True)
    import_dump("memory://foreign", "memory://imported")
    archive = Archive("memory://imported")
    assert archive.complete
    assert {key.op: record.dtype for key, record in archive.items()} == {
        "a": "bfloat16", "b": "float16", "c": "int16", "d": "float64",
    }  # fmt: skip
    assert bits_of(archive) == bits_of(imported(tmp_path))
    with pytest.raises(ArchiveError, match="already holds a run"):
        import_dump("memory://foreign", "memory://imported")
    np.save(tmp_path / "rank1.npy", np.ones(2))
    import_dump(tmp_path / "rank1.npy", "memory://imported", overwrite=True)
    ranks = {name.partition("_")[0] for name in memory.find("/imported")}
    assert ranks == {"/imported/worldsize2"}
