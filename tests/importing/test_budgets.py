"""Files that ask for more than a reader gives, and files that are no dumps."""

from __future__ import annotations

import io
import json
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dumpcmp
from dumpcmp import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.golden import unpacked_golden
from dumpcmp.importing import import_dump
from dumpcmp.nouns import budgets
from dumpcmp.nouns.budgets import Budget, BudgetError, Spending
from dumpcmp.nouns.errors import ArchiveError, DumpcmpError
from tests.archive.values import key, put

SECRET = b"root:x:0:0:correct horse battery staple\n" * 40


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """The block computes no longer than that; a busy machine does not count."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def deflated_pickle(path: Path) -> None:
    """A .pt whose tensor is 256 MB of zeros, and 256 KB in the zip."""
    torch.save({"a": torch.ones(4)}, path)
    with zipfile.ZipFile(path) as file:
        entries = {entry.filename: file.read(entry) for entry in file.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(name, bytes(256 << 20) if name.endswith("/data/0") else content)


def members_in_one_place(path: Path) -> None:
    """A .npz all of whose members are the same bytes of the file."""
    arrays: dict[str, Any] = {f"a{n}": np.zeros(4000) for n in range(40)}
    np.savez(path, **arrays)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\x01\x02")
    first = whole.index(b"PK\x03\x04")
    while at >= 0:
        whole[at + 42 : at + 46] = first.to_bytes(4, "little")
        at = whole.find(b"PK\x01\x02", at + 4)
    path.write_bytes(whole)


def deep_json(path: Path) -> None:
    tree: object = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1]}
    for _ in range(300):
        tree = [tree]
    call = {"Module.a.Linear.forward.0": {"output": [tree]}}
    (path.parent / "dump.json").write_text(json.dumps({"data": call}))


BOMBS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a.pt": (deflated_pickle, "bytes unpacked, and the file has", "auto"),
    "a.npz": (members_in_one_place, "a.npz: ", "auto"),
    "a.json": (deep_json, "lists lie more than 64 deep", "msprobe"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_to_more_than_it_has_is_refused(name: str, tmp_path: Path) -> None:
    make, told, format = BOMBS[name]
    make(tmp_path / name)
    source = tmp_path if format == "msprobe" else tmp_path / name
    with at_most(seconds=10), pytest.raises(DumpcmpError, match=told):
        import_dump(source, tmp_path.with_name(f"{tmp_path.name}-out"), format=format)


GAPS = {
    "between": ([("a", 0, 4), ("b", 8, 12)], 12),
    "before the first": ([("a", 4, 8)], 8),
    "behind the last": ([("a", 0, 4)], 8),
    "one over another": ([("a", 0, 4), ("b", 0, 4)], 4),
}


def test_rows_of_no_elements_are_counted(tmp_path: Path) -> None:
    """As msit's converter writes them: each row is a value, and takes no byte here."""
    path = tmp_path / "Add.Add_2.0.6.1706596911878000_min_max.npz"
    np.savez(path, inputs=np.zeros((10**9, 0)))
    with at_most(seconds=5), pytest.raises(BudgetError, match="more than 131072 names"):
        import_dump(path, tmp_path / "out", format="torchair")


@pytest.mark.parametrize("name", GAPS)
def test_what_the_librarys_own_reader_refuses_is_refused(name: str, tmp_path: Path) -> None:
    entries, nbytes = GAPS[name]
    header = {n: {"dtype": "F32", "shape": [1], "data_offsets": [a, b]} for n, a, b in entries}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + bytes(nbytes)
    library = pytest.importorskip("safetensors")
    numbers = pytest.importorskip("safetensors.numpy")
    with pytest.raises(library.SafetensorError):
        numbers.load(content)
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ArchiveError, match=r"a\.safetensors: "):
        import_dump(tmp_path / "a.safetensors", tmp_path / "out")


@pytest.mark.parametrize("suffix", [".pt", ".npy", ".npz", ".safetensors", ".json"])
def test_nothing_of_a_file_that_is_no_dump_is_quoted(suffix: str, tmp_path: Path) -> None:
    room = tmp_path / "d"
    room.mkdir()
    (room / "dump.json" if suffix == ".json" else room / f"a{suffix}").write_bytes(SECRET)
    with pytest.raises(DumpcmpError) as told:
        import_dump(room, tmp_path / "out", format="msprobe" if suffix == ".json" else "auto")
    length = str(int.from_bytes(SECRET[:8], "little"))
    for piece in (length, *(SECRET[at : at + 4].decode() for at in range(12))):
        assert piece not in str(told.value).replace(str(tmp_path), "")


def test_symbolic_links_are_not_followed_and_are_told(tmp_path: Path) -> None:
    secret, room = tmp_path / "secret.npy", tmp_path / "d"
    room.mkdir()
    np.save(secret, np.arange(4.0))
    np.save(room / "b.npy", np.ones(2))
    (room / "a.npy").symlink_to(secret)
    (room / "inner").symlink_to(tmp_path, target_is_directory=True)
    done = import_dump(room, tmp_path / "out")
    assert done.num_values == 1
    assert "a.npy (a symbolic link, which is not followed)" in done.left_out
    (room / "b.npy").unlink()
    with pytest.raises(ArchiveError, match="nothing to import"):
        import_dump(room, tmp_path / "other")


def test_an_archive_that_claims_a_million_ranks_is_read_in_time(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("a"), np.ones(3))
    rank = next((tmp_path / "d").iterdir())
    rank.rename(rank.with_name("worldsize999999_global_rank0"))
    with at_most(seconds=10):
        assert not audit(tmp_path / "d").sound
        assert "999999" in repr(Archive(tmp_path / "d"))
        outcome = dumpcmp.compare(tmp_path / "d", tmp_path / "d")
        assert outcome.exit_code == 2
        assert any("ranks 1-999998 are missing" in said for said in outcome.missing)


def test_a_fixture_of_many_files_or_large_ones_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dumpcmp.golden.FIXTURE", Budget("a golden fixture", 1 << 20, names=50))
    for sizes, told in (([1] * 60, "50 names"), ([300_000] * 5, "1048576 bytes")):
        with tarfile.open(tmp_path / "golden.tar", "w:xz") as tar:
            for number, size in enumerate(sizes):
                entry = tarfile.TarInfo(f"run/{number}")
                entry.size = size
                tar.addfile(entry, io.BytesIO(bytes(size)))
        with pytest.raises(BudgetError, match=told), unpacked_golden(tmp_path / "golden.tar"):
            pass


def look_for_ever(spending: Spending) -> None:
    while True:
        spending.look()


def test_every_bound_of_a_budget_is_held_and_named() -> None:
    small = Budget("a thing", nbytes=10, nodes=3, depth=2, names=2, seconds=0.02)
    spending = Spending(small, "x", 10)
    asks: dict[str, Callable[[], object]] = {
        "10 bytes": lambda: Spending(small, "x", 11),
        "3 values": lambda: spending.node(count=4),
        "2 levels": lambda: Spending(small, "x", 1).node(depth=3),
        "2 names": lambda: spending.name(3),
        "0.02 seconds": lambda: look_for_ever(spending),
    }
    for told, ask in asks.items():
        with pytest.raises(BudgetError, match=f"^x: more than {told}.*, which a thing may have"):
            ask()


def test_budgets_are_told_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "reliability.md").read_text()
    for budget in budgets.ALL:
        assert f"| {budget.what} |" in page
