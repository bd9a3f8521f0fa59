"""Laws of the writer's thread: with the compiled core and without it, parts are the same bytes."""

from __future__ import annotations

import gc
import random
import secrets
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import schema
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write import dense, desk, drain, finishing, part_tree
from dumpcmp.archive.write.finishing import LARGE_NBYTES
from dumpcmp.archive.write.objects import CallText, Template
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.staging import Staging
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Kept, Phase
from tests.archive.values import Dense, key, loaded, parts, record

pytestmark = pytest.mark.skipif(finishing._core is None, reason="the compiled core is not built")


class Lying(Dense):
    """A Source that says where it lies, as a tensor in host memory does."""

    digest = ""

    @property
    def lying(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        return self.bits.ctypes.data, 1, self.bits.shape, (1,)


# Calls of all kinds: nested, without a name of their own, not ASCII, described at length.
TOLD = (
    Call("Model", 0, Op("layers.0"), 0, 0),
    Call("Model", 0, Op("layers.0/linear"), 0, 1, "torch.nn.functional.linear", "model.py:31"),
    Call("Model", 0, Op("layers.0/linear"), 1, 2, "torch.nn.functional.linear", "model.py:31"),
    Call("Model", 0, Op("layers.1/a/b"), 0, 3, "torch.add", phase=Phase.BACKWARD),
    Call("Model", 0, Op(""), 7, 4, kernel="triton_0", thread="other"),
    Call("Model", 0, Op("häuser/größe"), 0, 5),
    Call("Model", 0, Op("half \ud800"), 0, 6),
    Call("Model", 0, Op('"quoted" \\ \x7f'), 0, 6),
    Call("Model", 0, Op("l" * 200 + "ä" * 60), 0, 7),
    Call("Model", 0, Op("l" * 1001), 0, 8),
    Call("Model", 0, Op("many/arguments"), 0, 9, arguments="[" + "1," * 600 + "1]"),
    Call("Model", 0, Op("more/arguments"), 0, 1 << 40, arguments=f"[{'1,' * 9000}1]"),
    Call("Model", 0, Op("fused"), 0, 10, origins=("layers.0/add#0", "layers.0/mul#0")),
    Call("Model", 0, Op("fused"), 0, 10, origins=("layers.0/add#0", "layers.0/mul#0")),
)


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
        fill_steps(sink)


def fill_steps(sink: ArchiveWriter) -> None:
    """Calls of all kinds, of steps that take turns, the same objects naming each."""
    op, bits = Op("layers.0/op"), np.ones(5, np.float32)
    for step in (0, 1, 2, 1, 0):
        for call in TOLD:
            sink.call(replace(call, step=step))
        for number in (0, 1):
            sink.call(Call("Model", step, op, number, 1000 + number, "torch.add"))
            for slot in ("input.0", "input.1"):
                told = record(Key("Model", step, op, number, slot), bits, order=1000 + number)
                sink.put(told, Lying(bits))
                sink.put(replace(told, dtype="int32"), Lying(bits))
                sink.put(replace(told, stride=(2,), same_as=told.key), None)
        sink.call(Call("Model", step, Op("odd"), True, 2000))  # an integer, in a way


def _next(numbers: Iterator[int], _: int) -> int:
    return next(numbers)


def grown(texts: list[CallText], open_part: Part) -> list[tuple[bytes, int]]:
    """What the tree of `open_part` is laid out as, three times while calls and values come."""
    laid = []
    for calls in (TOLD[:5], TOLD[5:], ()):
        for call in calls:
            open_part.told.append((call, texts[TOLD.index(call)]))
        open_part.told.append(None)  # one that was lost
        for number, each in enumerate(open_part.told):
            if each is not None:
                values = record(Key("Model", 0, each[0].op, 0, "output.0"), np.zeros(3))
                open_part.forms.append(Template(schema.form_of(values)))
                form = len(open_part.forms) - 1
                open_part.add_value(number, open_part.forms[-1], form, number, 640, 0, b"0" * 32)
        open_part.tree.grow(open_part)
        laid.append(open_part.tree.lay(4096))
    return laid


def test_groups_are_the_same_bytes_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid = []
    for way in ("quick", "slow"):
        texts = [CallText(call) for call in TOLD]
        for again in range(2):  # by texts that are known
            open_part = Part(tmp_path / f"part-{again}.h5", {"part": 0})
            laid.append(grown(texts, open_part))
            open_part.close()
        assert len({len(block) for block, _ in laid[-1]}) == 3, way
        monkeypatch.setattr(part_tree, "_core", None)
    assert laid[0] == laid[1] == laid[2] == laid[3]


@pytest.mark.each_value_once
@pytest.mark.parametrize("part_nbytes", [1 << 30, 1 << 15], ids=["one part a step", "many"])
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_write_the_same_parts(
    seed: int, part_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "COMMIT_SECONDS", float("inf"))  # or parts differ by the clock
    written = []
    for way in ("quick", "laid quickly", "slow"):
        if way == "slow":
            for name in ("lay_record", "lay_told"):
                monkeypatch.setattr(Staging, name, lambda *_: None)
        monkeypatch.setattr(secrets, "randbits", partial(_next, count(1)))
        fill(tmp_path / way, seed, part_nbytes)
        written.append([(*each.parts[-2:], each.read_bytes()) for each in parts(tmp_path / way)])
        for module in (finishing, part_tree, dense):
            monkeypatch.setattr(module, "_core", None)
    assert len(written[0]) == 3 if part_nbytes > 1 << 20 else len(written[0]) > 5
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_pending_is_taken_in_the_order_it_came(seed: int) -> None:
    draw, pending = random.Random(seed), desk.Pending()
    expected: deque[tuple[int, ...]] = deque()
    for number in range(2000):
        if draw.random() < (0.7 if number < 1000 else 0.4):
            pending.append((number,))
            expected.append((number,))
        elif expected:
            assert pending.popleft() == expected.popleft()
        assert len(pending) == len(expected) and bool(pending) == bool(expected)
    pending.append((2000,))
    expected.append((2000,))
    assert [*pending] == [*expected] and pending[0] == expected[0]
    pending.clear()
    assert not pending
    with pytest.raises(IndexError):
        pending.popleft()


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


LENGTHS = (1, 16, 128, 240, 241, 255, 256, 257, 1023, 1024, 1025, 1087, 1088, 1089, 4096, 65_535)


@pytest.mark.skipif(not hasattr(desk._core, "Desk"), reason="the compiled core is not built")
def test_what_is_copied_at_once_has_the_digest_that_xxhash_gives(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lengths = (*LENGTHS, *draw.integers(1, 1 << 16, 40).tolist(), 1 << 16, 100_000)
    room = draw.integers(0, 256, 100_100, np.uint8)
    laid = [(at, room[at % 67 :][:nbytes]) for at, nbytes in enumerate(lengths)]  # at any address
    told, num_told = [], 0  # none where the way in Python was taken, as where a form is new
    with ArchiveWriter(tmp_path) as sink:
        for again in range(2):
            for at, bits in laid:
                call, source = 1000 * again + at, Lying(bits)
                sink.call(Call("Model", 0, Op("layers.0"), call, call))
                sink.put(record(key(call=call), bits, order=call), source)
                told.append(source.digest in ("", xxh3_128_hexdigest(bits.data)))
                num_told += bool(source.digest)
    assert all(told) and num_told > len(lengths) // 2
    archive = Archive(tmp_path)
    for at, bits in laid:
        assert loaded(archive, key(call=1000 + at)).tobytes() == bits.tobytes()
        assert archive[key(call=1000 + at)].digest == xxh3_128_hexdigest(bits.data)


def test_nothing_stays_behind_of_calls_and_records(tmp_path: Path) -> None:
    bits = np.arange(5.0)
    op = Op("layers.7.linear")
    calls = [Call("Model", 0, op, number, number, f"target {number % 2}") for number in range(20)]
    told = [record(Key("Model", 0, op, number, "output.0"), bits) for number in range(20)]
    links = [replace(each, key=each.key.site.key("output.1"), same_as=each.key) for each in told]
    source = Lying(bits)
    everything = [op, source, bits, *calls, *told, *links, *(each.shape for each in told)]

    def held(path: Path) -> list[int]:
        with ArchiveWriter(path) as sink:
            for call, value, link in zip(calls, told, links, strict=True):
                sink.call(call)
                sink.put(value, source)
                sink.put(link, None)
        del sink
        gc.collect()
        return [sys.getrefcount(each) for each in everything]

    first = held(tmp_path / "first")  # after which caches know the names
    assert held(tmp_path / "second") == first


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
