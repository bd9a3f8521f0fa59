"""Files that are cut short, lie, or would run code are refused in a sentence."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dumpcmp.archive.read.reader import Archive
from dumpcmp.importing import import_dump
from dumpcmp.nouns.errors import ArchiveError, DumpcmpError
from tests.importing.written import numbers, save_safetensors


class Evil:
    """An object whose unpickling makes a directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL"],)


def refused(source: Path, match: str) -> None:
    out = source.with_name("out")
    with pytest.raises(ArchiveError, match=match) as told:
        import_dump(source, out)
    assert str(source) in str(told.value)
    assert not out.exists() or not list(out.iterdir())


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """A block that fails when it takes longer, wherever it hangs."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"it was not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def safetensors(path: Path, header: object, content: bytes = b"", length: int = -1) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length < 0 else length
    path.write_bytes(size.to_bytes(8, "little") + text + content)
    return path


def entry(first: int, last: int, shape: list[Any], dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


WRONG_HEADERS = {
    "its header should have more bytes": (b"{}", b"", 1 << 60),
    "is no JSON": (b"{", b"", -1),
    "is no JSON object": (b"[1]", b"", -1),
    "stands in it twice": (b'{"a": {}, "a": {}}', b"", -1),
    "makes no sense": ({"a": {"dtype": "F32"}}, b"", -1),
    "makes no sense: ValueError": ({"a": entry(0, 4, [-1])}, b"1234", -1),
    "and float32 of shape": ({"a": entry(0, 4, [2])}, b"1234", -1),
    "end at byte": ({"a": entry(0, 4, [1])}, b"123", -1),
    "are those of another value": ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, b"12345678", -1),
    "recursion": (b"[" * 200_000, b"", -1),
}


@pytest.mark.parametrize("match", WRONG_HEADERS)
def test_safetensors_that_lie(tmp_path: Path, match: str) -> None:
    header, content, length = WRONG_HEADERS[match]
    refused(safetensors(tmp_path / "a.safetensors", header, content, length), match)


def test_a_name_that_stands_twice_among_many_is_found_at_once(tmp_path: Path) -> None:
    names = [f"layers.{number}.weight" for number in range(200_000)]
    pairs = ", ".join(f'"{name}": {{}}' for name in [*names, names[-1]])
    path = safetensors(tmp_path / "a.safetensors", f"{{{pairs}}}".encode())
    with at_most(seconds=30):  # looking at each name for each took an hour
        refused(path, "layers.199999.weight' stands in it twice")


@pytest.mark.parametrize("count", [3, 20, 100])
def test_safetensors_that_are_cut_short(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors({"a": torch.ones(64)}, path)
    path.write_bytes(path.read_bytes()[:count])
    refused(path, "bytes|should have|end at byte")


def npy(array: Any, **options: Any) -> bytes:
    room = BytesIO()
    np.save(room, array, **options)
    return room.getvalue()


OBJECTS = np.array([{"a": 1}, None], object)
WRONG_ARRAYS: dict[str, Callable[[], bytes]] = {
    "Python objects": lambda: npy(OBJECTS, allow_pickle=True),
    "its header asks for": lambda: npy(numbers((100,)))[:-5],
    "or holds several arrays": lambda: npy(numbers((2,))) + npy(numbers((2,))),
    "makes no sense": lambda: b"\x93NUMPY\x01\x00\x10\x00{'descr': 1}    \n",
    "does not begin as a .npy does": lambda: pickle.dumps(OBJECTS),
    "holds no plain array": lambda: b"\x93NUMPY\x09\x00" + npy(numbers((2,)))[8:],
}


@pytest.mark.parametrize("match", WRONG_ARRAYS)
def test_arrays_that_lie_or_are_pickles(tmp_path: Path, match: str) -> None:
    (tmp_path / "a.npy").write_bytes(WRONG_ARRAYS[match]())
    refused(tmp_path / "a.npy", match)


@pytest.mark.parametrize("match", ["Python objects", "its header asks for", "makes no sense"])
def test_zips_of_arrays_that_lie_or_are_pickles(tmp_path: Path, match: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("a.npy", WRONG_ARRAYS[match]())
    refused(tmp_path / "a.npz", match)


def test_zips_that_are_cut_short_damaged_or_hold_other_things(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=numbers((1000,)))
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    refused(path, "it is no .npz")
    path.write_bytes(whole[:2000] + b"\xff\xff\xff" + whole[2003:])
    refused(path, "CRC")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../evil.txt", "x")
    refused(path, "is no array")


def test_a_torch_file_that_would_run_code_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    torch.save({"a": torch.ones(2), "b": Evil()}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "holds more than tensors: .*mkdir")
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Evil()))
    refused(tmp_path / "a.pt", "holds more than tensors")
    assert not (tmp_path / "evil").exists()


def nested(depth: int, innermost: Any) -> list[Any]:
    """A list that holds one list twice, which holds one twice, and so on."""
    tree = [innermost]
    for _ in range(depth):
        tree = [tree, tree]
    return tree


def holding_itself() -> list[Any]:
    tree: list[Any] = [torch.ones(1)]
    tree += [tree, tree]
    return tree


BOMBS: dict[str, Callable[[], Any]] = {
    "lists": lambda: nested(40, torch.ones(1)),
    "empty lists": lambda: nested(40, []),
    "a list of itself": holding_itself,
    "dicts": lambda: {"a": nested(30, {"b": torch.ones(1)}), "c": 1},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_torch_file_of_endless_paths_is_refused(tmp_path: Path, name: str) -> None:
    torch.save(BOMBS[name](), tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 4096
    with at_most(seconds=30):
        refused(tmp_path / "a.pt", "stand in each other so often")


def test_values_that_stand_in_a_torch_file_twice_are_imported_twice(tmp_path: Path) -> None:
    tied = {"weight": torch.arange(6.0)}
    torch.save({"embed": tied, "head": tied, "deep": nested(3, tied["weight"])}, tmp_path / "a.pt")
    import_dump(tmp_path / "a.pt", tmp_path / "out")
    archive = Archive(tmp_path / "out")
    assert len(archive) == 2 + 2**3
    assert {archive.load(record).bits.tobytes() for record in archive.values()} == {
        tied["weight"].numpy().tobytes()
    }


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt", "a.safetensors", "dump.json"])
def test_what_is_no_regular_file_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "b.npy", numbers((2,)))
    torch.save(torch.ones(1), tmp_path / "d" / "b.pt")
    os.mkfifo(tmp_path / "d" / name)
    with at_most(seconds=30):
        with pytest.raises(ArchiveError, match=f"{name} is no regular file, but a FIFO") as told:
            import_dump(tmp_path / "d", tmp_path / "out")
        assert "--files" in told.value.hint
        refused(tmp_path / "d" / name, "is no regular file, but a FIFO")
        done = import_dump(tmp_path / "d", tmp_path / "out", format="npy", files=["b.*"])
    assert done.num_values == 1 and name in done.left_out, "it is told that it was left out"


@pytest.mark.parametrize("count", [0, 10, 700])
def test_torch_files_that_are_cut_short(tmp_path: Path, count: int) -> None:
    torch.save({"a": torch.ones(1000)}, tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:count])
    refused(tmp_path / "a.pt", "torch cannot load it|holds more than tensors")


def test_a_tensor_that_is_larger_than_any_disk_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(1).expand(1 << 50), tmp_path / "a.pt")
    with pytest.raises(ArchiveError, match="would take"):
        import_dump(tmp_path / "a.pt", tmp_path / "out")


def test_nothing_to_import_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("a")
    refused(tmp_path / "d", "has nothing to import")
    with pytest.raises(ArchiveError, match="is not there"):
        import_dump(tmp_path / "nowhere", tmp_path / "out")


def test_what_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    np.savez(tmp_path / "d" / "a.npz", a=numbers((500_000,)))
    np.savez(tmp_path / "d" / "b.npz", b=numbers((500_000,)))
    whole = (tmp_path / "d" / "b.npz").read_bytes()
    (tmp_path / "d" / "b.npz").write_bytes(whole[:900_000] + b"\xff" * 9 + whole[900_009:])
    with pytest.raises(ArchiveError, match="CRC"):
        import_dump(tmp_path / "d", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def written(path: Path) -> None:
    tensors = {"layers.0": torch.arange(12.0).reshape(3, 4), "b": torch.ones(4).bfloat16()}
    if path.suffix == ".safetensors":
        save_safetensors(tensors, path)
    elif path.suffix == ".pt":
        torch.save(tensors, path, _use_new_zipfile_serialization=path.stem != "old")
    elif path.suffix == ".npy":
        np.save(path, tensors["layers.0"].numpy())
    else:
        np.savez_compressed(path, a=tensors["layers.0"].numpy())


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "old.pt", "a.npy", "a.npz"])
def test_whatever_a_file_holds_is_imported_or_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path / name)
    whole, chance = (tmp_path / name).read_bytes(), random.Random(name)
    for _ in range(60):
        damaged = bytearray(whole)
        at = chance.randrange(len(damaged))
        if chance.random() < 0.7:
            damaged[at] = chance.choice([0, 255, chance.randrange(256)])
        else:
            del damaged[at : at + chance.randrange(1, 200)]
        (tmp_path / name).write_bytes(damaged)
        try:
            import_dump(tmp_path / name, tmp_path / "out", overwrite=True)
        except DumpcmpError as error:
            assert error.message and "\n" not in error.message
        else:
            assert Archive(tmp_path / "out").complete
