"""Laws of the writer's thread: with the compiled core and without it, parts are the same bytes."""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from zlib import crc32

import h5py
import numpy as np
import pytest

from dumpcmp.archive import schema
from dumpcmp.archive.encoder import padded
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write import dense, desk, drain, finishing, part_tree
from dumpcmp.archive.write.finishing import LARGE_NBYTES
from dumpcmp.archive.write.objects import CallText
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.staging import Staging
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Kept
from tests.archive.values import Dense, key, loaded, parts, record

pytestmark = pytest.mark.skipif(finishing._core is None, reason="the compiled core is not built")


class Lying(Dense):
    """A Source that says where it lies, as a tensor in host memory does."""

    digest = ""

    @property
    def lying(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        return self.bits.ctypes.data, 1, self.bits.shape, (1,)


def fill(path: Path, seed: int, part_nbytes: int) -> None:
    """Values of any size, empty, late, large, unstorable, and links to those before, to none."""
    draw = random.Random(seed)
    earlier: list[Key] = []
    most = draw.choice((40, 4000))  # elements: parts of small values are laid out anew
    with ArchiveWriter(path, part_nbytes=part_nbytes) as sink:
        for number in range(120):
            op = Op(f"layers.{number % 7}/op")
            sink.call(Call("Model", 0, op, number, number, "torch.add", f"m.py:{number % 5}"))
            for slot in range(draw.randint(0, 4)):
                name = key(op, f"output.{slot}", call=number)
                match draw.randint(0, 7):
                    case 0 if earlier:
                        bits = np.zeros(3)
                        told = record(name, bits, order=number)
                        same = draw.choice(earlier)
                        sink.put(replace(told, same_as=same), None)
                    case 1:
                        told = record(name, np.zeros(3), order=number)
                        sink.put(replace(told, kept=Kept.NOTHING, problem="odd"), None)
                    case 2:
                        sink.put(record(name, np.zeros((0, 3)), order=number), None)
                    case 3:
                        bits = np.full(draw.randint(1, most), draw.random(), np.float32)
                        sink.put(record(name, bits, order=number), Dense(bits, wait=lambda: None))
                    case _:
                        bits = np.full(draw.randint(1, most), draw.random(), np.float32)
                        for _ in range(draw.choice((1, 1, 1, 2))):  # the second has another name
                            sink.put(record(name, bits, order=number), Lying(bits))
                        earlier.append(name)
            if number % 9 == 0:  # told twice: the first stays
                sink.call(Call("Model", 0, op, number, number, "torch.sub"))
            if number == 60 and seed % 2:
                bits = np.full(LARGE_NBYTES // 8 + 5, 0.5)
                name = key(op, "output.large", call=number)
                sink.put(record(name, bits, order=number), Dense(bits))
                earlier += [name] * 20


def content(path: Path) -> tuple[bytes, list[object]]:
    """A part without what its commits hold, and the tree that they make.

    Commits write groups in no order.
    """
    octets, at = bytearray(path.read_bytes()), schema.JOURNAL_AT
    while octets[at : at + 4] == schema.MAGIC:
        _, _, _, _, _, nbytes, kind, blocks, *_ = schema.HEADER.unpack_from(octets, at)
        body = at + blocks * schema.ALIGNMENT
        at = body + padded(nbytes, schema.ALIGNMENT)
        if kind == schema.COMMIT:
            octets[body:at] = bytes(at - body)
    tree: list[object] = []

    def visit(name: str, found: h5py.Group | h5py.Dataset) -> None:
        told = h5py.h5o.get_info(found.id)
        links = {} if isinstance(found, h5py.Dataset) else {n: _link(found, n) for n in found}
        address = links if isinstance(found, h5py.Group) else told.addr
        attributes = [(word, str(value)) for word, value in found.attrs.items()]
        tree.append((name, address, told.rc, attributes))

    with h5py.File(path) as file:
        file.visititems(visit)
    return bytes(octets), tree


def _next(numbers: Iterator[int], _: int) -> int:
    return next(numbers)


def _link(group: h5py.Group, name: str) -> object:
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        return link.filename, link.path
    told = h5py.h5o.get_info(group.id, name.encode())
    return told.addr if told.type == h5py.h5o.TYPE_DATASET else "group"


@pytest.mark.parametrize("part_nbytes", [1 << 30, 1 << 15], ids=["one part", "many"])
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_write_the_same_parts(
    seed: int, part_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "COMMIT_SECONDS", float("inf"))  # or parts differ by the clock
    written = []
    for way in ("quick", "slow"):
        monkeypatch.setattr(secrets, "randbits", partial(_next, count(1)))
        fill(tmp_path / way, seed, part_nbytes)
        written.append([(each.name, content(each)) for each in parts(tmp_path / way)])
        for module in (finishing, part_tree, dense):
            monkeypatch.setattr(module, "_core", None)
        for name in ("lay_record", "lay_told"):
            monkeypatch.setattr(Staging, name, lambda *_: None)
    assert len(written[0]) == 1 if part_nbytes > 1 << 20 else len(written[0]) > 3
    assert written[0] == written[1]


@pytest.mark.skipif(not hasattr(desk._core, "Desk"), reason="the compiled core is not built")
def test_a_record_of_a_known_form_takes_one_call_of_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = np.arange(5.0)
    sources = [Lying(bits + number) for number in range(3)]
    with ArchiveWriter(tmp_path) as sink:
        for number, source in enumerate(sources):
            sink.call(Call("Model", 0, Op("layers.0"), number, number))
            sink.put(record(key(call=number), bits, order=number), source)
            sink.put(replace(record(key(slot="input.0", call=number), bits), same_as=key()), None)
            monkeypatch.setattr(Staging, "take", None)  # the first told of its form
            monkeypatch.setattr(Staging, "take_call", None)
    archive = Archive(tmp_path)
    assert [archive[key(call=n)].digest for n in (1, 2)] == [each.digest for each in sources[1:]]
    for number, source in enumerate(sources):
        assert loaded(archive, key(call=number)).tobytes() == source.bits.tobytes()
    assert archive[key(slot="input.0", call=2)].same_as == key()


def test_trouble_of_a_copy_ends_the_capture_and_not_the_program(tmp_path: Path) -> None:
    def lost() -> None:
        raise RuntimeError("the device is gone")

    bits = np.ones(4)
    with pytest.warns(UserWarning, match="the device is gone"), ArchiveWriter(tmp_path) as sink:
        sink.call(Call("Model", 0, Op("layers.0"), 0, 0))
        sink.put(record(key(), bits), Dense(bits, wait=lost))
        sink.settle()


@pytest.mark.parametrize("nbytes", [64, 128, 192, 1024, 4096 + 64])
def test_checksums_are_those_of_zlib(nbytes: int, tmp_path: Path) -> None:
    room = bytearray(random.Random(nbytes).randbytes(nbytes))
    open_part = Part(tmp_path / "part-0000.h5", {"part": 0})
    call = Call("Model", 0, Op("layers.0"), 0, 0)
    pending = deque([(2, open_part, 0, nbytes, call, CallText(call))])
    end = open_part.end
    found = finishing._core.finish(pending, open_part, room, 1 << 20, 1 << 22, {}, None, None)
    assert found == (0, nbytes, 1, None, "")
    assert open_part.end == end + nbytes
    assert int.from_bytes(room[24:32], "little") == end
    assert int.from_bytes(room[4:8], "little") == crc32(room[8:])
    open_part.close()


@pytest.mark.parametrize("place, total", [(0, 128), (64, 64), (-64, 64), (0, 32)])
def test_a_record_outside_of_the_ring_is_refused(place: int, total: int, tmp_path: Path) -> None:
    open_part = Part(tmp_path / "part-0000.h5", {"part": 0})
    call = Call("Model", 0, Op("layers.0"), 0, 0)
    entry = (2, open_part, place, total, call, CallText(call))
    with pytest.raises(ValueError, match="outside of the ring"):
        finishing._core.finish([entry], open_part, bytearray(64), 1, 1 << 22, {}, None, None)
    open_part.close()
