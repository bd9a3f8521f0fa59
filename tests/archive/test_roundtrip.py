"""Whatever is written is read back identical, through our reader and through plain h5py."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dumpcmp.archive.paths import file_name, group_path, link_name, name_of_file
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Phase, Record
from dumpcmp.nouns.value import DTYPES, to_torch, value_of
from tests.archive.values import Dense, key, loaded, parts, put, record

NASTY = ["", ".", "..", "../../etc/passwd", "a/../b", "/", "//", "a//b", "\0", "a\0b", "%", "%2E",
         "#", "a#0", "_index", "_op", "é", "层.0", "\ud800", " ", "a b", "x" * 10_000,
         "y" * 9_999 + "z", "CON", "-", "~", "\n", "part-0000.h5", "run.json"]  # fmt: skip

names = st.one_of(
    st.sampled_from(NASTY),
    st.text(string.ascii_lowercase + "._/#%", max_size=12),
    st.text(max_size=20),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def written(draw: st.DrawFn) -> tuple[Key, str, NDArray[Any]]:
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    bits = draw(hnp.arrays(np.dtype(dtype.storage), draw(shapes)))
    model, step = draw(st.sampled_from(["Model", "../up", "", "m" * 300])), draw(st.integers(0, 2))
    return Key(model, step, draw(names), draw(st.integers(0, 2)), draw(names)), dtype.name, bits


trees = st.lists(written(), max_size=12, unique_by=lambda entry: entry[0])


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees, st.sampled_from([1, 4_000, 1 << 30]))
def test_any_tree_of_keys_and_tensors_is_read_back(tree: Any, part_nbytes: int) -> None:
    with TemporaryDirectory() as room:
        path = Path(room, "d")
        with ArchiveWriter(path, part_nbytes=part_nbytes, ring_nbytes=1 << 20) as sink:
            for order, (name, dtype, bits) in enumerate(tree):
                sink.put(record(name, bits, dtype, order), Dense(bits))
        archive = Archive(path)
        assert archive.complete and set(archive) == {name for name, _, _ in tree}
        for order, (name, dtype, bits) in enumerate(tree):
            found = archive[name]
            assert (found.order, found.dtype, found.shape) == (order, dtype, bits.shape)
            assert loaded(archive, name).tobytes() == bits.tobytes()
        assert all(path in part.parents for part in Path(room).rglob("*.h5"))
        check_with_h5py(path, tree)


def check_with_h5py(path: Path, tree: Any) -> None:
    """Every value lies where the names say, once, bit for bit, with true attributes."""
    held: dict[tuple[str, ...], list[bytes]] = {}
    for part in parts(path):
        with h5py.File(part) as file:
            model, step = file.attrs["model"], int(file.attrs["step"])
            for name, dtype, bits in tree:
                place = "/".join((*group_path(name.op, name.call), link_name(name.slot)))
                here = (name.model.encode(), name.step) == (bytes(model).rstrip(b"\0"), step)
                if here and place in file:
                    found = file[place]
                    raw = np.empty(found.shape, DTYPES[dtype].storage)
                    found.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, found.id.get_type())
                    assert found.shape == bits.shape and raw.tobytes() == bits.tobytes()
                    assert found.attrs["dtype"].decode() == dtype
                    held.setdefault((name.model, str(name.step), place), []).append(b"")
    assert len(held) == len(tree) and all(len(copies) == 1 for copies in held.values())


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_no_two_names_collide(pair: list[str]) -> None:
    assert link_name(pair[0]) != link_name(pair[1])
    assert file_name(pair[0]) != file_name(pair[1])
    assert group_path(pair[0], 0) != group_path(pair[1], 0)


@given(names)
def test_no_name_leaves_its_directory(name: str) -> None:
    escaped = file_name(name)
    assert Path("d", escaped).parent == Path("d") and escaped not in (".", "..", "")
    assert len(escaped.encode()) < 255 and "\0" not in escaped
    if len(escaped.encode()) <= 150:
        assert name_of_file(escaped) == name


def tensor_of(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose bytes count up, whatever they stand for."""
    kind = getattr(torch, dtype)
    raw = torch.arange(int(np.prod(shape)) * DTYPES[dtype].nbytes).to(torch.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    return raw.view(kind).reshape(shape) if raw.numel() else torch.empty(shape, dtype=kind)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_torch_tensors_come_back_bit_for_bit(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {key(dtype): tensor_of(dtype, shape) for dtype in DTYPES}
    with ArchiveWriter(tmp_path / "d") as sink:
        for name, tensor in tensors.items():
            sink.put(record(name, value_of(tensor).bits, name.op), Dense(value_of(tensor).bits))
    archive = Archive(tmp_path / "d")
    for name, tensor in tensors.items():
        back = to_torch(archive.load(archive[name]))
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert value_of(back).bits.tobytes() == value_of(tensor).bits.tobytes()


def test_a_tensor_that_is_not_contiguous_is_dense_in_the_file_and_its_stride_is_told(
    tmp_path: Path,
) -> None:
    base = np.arange(24.0).reshape(4, 6)
    view = base.T[::2]
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key(), view)
    archive = Archive(tmp_path / "d")
    assert archive[key()].stride == (2, 6)
    np.testing.assert_array_equal(loaded(archive, key()), view)
    with h5py.File(parts(tmp_path)[0]) as file:
        found = file["layers.0#0/output.0"]
        np.testing.assert_array_equal(found[()], view)
        assert list(found.attrs["stride"]) == [2, 6]


CALLS = [
    Call("Model", 0, Op("layers.0"), 0, 0),
    Call("Model", 0, Op("layers.0/linear"), 1, 1, "torch.nn.functional.linear", "model.py:31"),
    Call("Model", 0, Op("a\0b"), 0, 2, arguments='{"args": [1, "é"]}', phase=Phase.BACKWARD),
    Call("Model", 0, Op("long"), 0, 3, arguments="x" * 100_000, origins=("a#0", "b#1"),
         kernel="triton_0"),
]  # fmt: skip


def test_calls_come_back_whole_and_their_attributes_are_there_for_others(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for call in CALLS:
            sink.call(call)
            put(sink, key(call.op, call=call.call), np.ones(2), call.order)
    archive = Archive(tmp_path / "d")
    assert list(archive.calls.values()) == CALLS
    with h5py.File(parts(tmp_path)[0]) as file:
        attrs = file["layers.0/linear#1"].attrs
        assert attrs["target"] == b"torch.nn.functional.linear" and attrs["order"] == 1
        assert file["long#0/_arguments"][()] == b"x" * 100_000
        assert file["long#0"].attrs["origins"] == b'["a#0", "b#1"]'


def test_a_record_keeps_all_that_it_says(tmp_path: Path) -> None:
    told = Record(key(), 5, "float32", (2,), (3,), 7, "cuda:1", 1, "b s[cp] h[tp]")
    with ArchiveWriter(tmp_path / "d", rank=1, world_size=2) as sink:
        sink.put(told, Dense(np.zeros(2, np.float32)))
    found = Archive(tmp_path / "d")[key()]
    assert found == replace(told, digest=found.digest, location=found.location)
