"""The sink: several threads, several parts, links, slow disks, late copies, trouble."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import schema
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.paths import HEADER_NBYTES
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write import ring as rings
from dumpcmp.archive.write.drain import Drain
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.ring import Memory
from dumpcmp.archive.write.spares import Spares
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError, CaptureWarning
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept, Record, Stored
from tests.archive.values import Dense, key, loaded, parts, put, record


@pytest.mark.parametrize("seconds, size", [(0, 300), (0.002, 9_000)])
def test_threads_may_share_a_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, size: int
) -> None:
    write_part = Part.write

    def slow(self: Part, content: bytes, address: int) -> None:
        time.sleep(seconds)
        write_part(self, content, address)

    monkeypatch.setattr(Part, "write", slow)
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20) as sink:

        def write(op: str) -> None:
            for number in range(200):
                put(sink, key(f"{op}.{number}", f"output.{number}"), np.full(size, float(number)))

        threads = [threading.Thread(target=write, args=(f"op{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    archive = Archive(tmp_path / "d")
    assert len(archive) == 800 and audit(tmp_path / "d").sound
    for name in archive:
        assert (loaded(archive, name) == float(name.slot.split(".")[1])).all()


@pytest.mark.parametrize("memory", ["shared", "file", "private"])
@pytest.mark.parametrize("nbytes", [8, 8 << 10, 600 << 10, 3 << 20])
def test_values_larger_than_the_ring_and_smaller_come_through(
    tmp_path: Path, memory: Memory, nbytes: int
) -> None:
    values = [np.random.default_rng(n).random(nbytes // 8) for n in range(12)]
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20, memory=memory) as sink:
        for number, bits in enumerate(values):
            put(sink, key(f"op{number}"), bits)
    archive = Archive(tmp_path / "d")
    for number, bits in enumerate(values):
        np.testing.assert_array_equal(loaded(archive, key(f"op{number}")), bits)
    assert audit(tmp_path / "d").sound


def test_a_slow_disk_makes_the_producer_wait_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Part.write

    def slow(self: Part, content: bytes, address: int) -> None:
        time.sleep(0.005)
        write(self, content, address)

    monkeypatch.setattr(Part, "write", slow)
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20) as sink:
        for number in range(100):
            put(sink, key(f"op{number}"), np.full(8_000, float(number)))
        assert sink.progress.seconds_waited > 0
        assert sink.progress.buffer == 1 << 20 >= sink._ring.reach
    assert len(Archive(tmp_path / "d")) == 100


def test_a_step_stays_open_however_many_steps_of_other_models_come(tmp_path: Path) -> None:
    """As where a thread rests in the midst of its step, while others go on."""
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("first"), np.arange(4.0))
        for number in range(40):
            other = replace(key("op", step=number), model="Other")
            sink.put(record(other, np.ones(4)), Dense(np.ones(4)))
        link = record(key("second"), np.arange(4.0))
        sink.put(replace(link, same_as=key("first")), None)
    found = Archive(tmp_path / "d")[key("second")]
    assert found.same_as == key("first") and not found.problem


def drafts(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("**/.new-*"))


@pytest.mark.parametrize(("steps", "ready"), [([0, 1, 2], "3"), ([0, 4, 8], "12"), ([5], None)])
def test_the_part_of_the_next_step_is_there_before_it_begins(
    steps: list[int], ready: str | None, tmp_path: Path
) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in steps:
            put(sink, key("op", step=step), np.full(4, step))
            sink.finish_step("Model", step)
        assert drafts(tmp_path / "d") == ([f".new-{ready}"] if ready else [])
        if ready is not None:
            inode = next((tmp_path / "d").glob("**/.new-*/part-0000.h5")).stat().st_ino
            put(sink, key("op", step=int(ready)), np.full(4, int(ready)))
            part = next((tmp_path / "d").glob(f"**/{ready}/part-0000.h5"))
            assert part.stat().st_ino == inode
            steps = [*steps, int(ready)]
        put(sink, key("op", step=100), np.full(4, 100))  # another than was expected
        sink.finish_step("Model", 100)
    assert drafts(tmp_path / "d") == []
    archive = Archive(tmp_path / "d")
    assert {k.step: archive.tensor(k)[0].item() for k in archive} == {
        step: step for step in (*steps, 100)
    }


def test_no_part_is_made_for_a_step_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where gradients may come: steps end when many later ones have begun."""
    removed: list[str] = []
    monkeypatch.setattr(Spares, "_discard", lambda _, model: removed.append(model))
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(12):
            put(sink, key("op", step=step), np.full(4, step))
            assert not drafts(tmp_path / "d")
    assert not removed
    assert len(Archive(tmp_path / "d")) == 12


@pytest.mark.parametrize("has_file", [True, False])
def test_a_directory_of_the_next_step_that_is_there_keeps_what_it_holds(
    has_file: bool, tmp_path: Path
) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(2):
            put(sink, key("op", step=step), np.full(4, step))
            sink.finish_step("Model", step)
        room = next((tmp_path / "d").glob("**/.new-2")).with_name("2")
        room.mkdir()
        if has_file:
            (room / "notes.txt").write_text("mine")
        put(sink, key("op", step=2), np.full(4, 2))
    assert not has_file or (room / "notes.txt").read_text() == "mine"
    assert drafts(tmp_path / "d") == []
    archive = Archive(tmp_path / "d")
    assert {k.step: archive.tensor(k)[0].item() for k in archive} == {0: 0, 1: 1, 2: 2}


def test_a_new_part_begins_where_one_is_full_and_links_reach_across(tmp_path: Path) -> None:
    first = np.arange(100.0)
    with ArchiveWriter(tmp_path / "d", part_nbytes=20_000) as sink:
        put(sink, key("first"), first)
        for number in range(40):
            put(sink, key("op", f"output.{number}"), np.full(100, float(number)))
        link = record(key("last", "input.0"), first)
        sink.put(replace(link, same_as=key("first")), None)
        again = replace(link, key=key("last", "input.1"), same_as=key("last", "input.0"))
        sink.put(again, None)
    assert len(parts(tmp_path)) > 2
    archive = Archive(tmp_path / "d")
    for slot in ("input.0", "input.1"):
        found = archive[key("last", slot)]
        assert found.same_as == key("first") and found.location == archive[key("first")].location
        np.testing.assert_array_equal(loaded(archive, key("last", slot)), first)
    with h5py.File(parts(tmp_path)[-1]) as file:
        np.testing.assert_array_equal(file["last#0/input.1"][()], first)
    assert audit(tmp_path / "d").sound


def test_a_repeated_value_is_a_hard_link_and_counted_as_one(tmp_path: Path) -> None:
    bits = np.arange(1000.0)
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("a"), bits)
        for slot in ("input.0", "input.1"):
            sink.put(replace(record(key("b", slot), bits), same_as=key("a")), None)
    assert parts(tmp_path)[0].stat().st_size < 2 * bits.nbytes
    with h5py.File(parts(tmp_path)[0]) as file:
        assert file["a#0/output.0"] == file["b#0/input.0"] == file["b#0/input.1"]
        assert h5py.h5o.get_info(file["a#0/output.0"].id).rc == 3


UNSTORABLE = [
    (Record(key(), 0, "float32", (2, 2), problem="sparse_coo has no dense bytes"), "sparse"),
    (Record(key(), 0, "qint8", (2,)), "qint8"),
    (Record(key(), 0, "float32", (1,) * 33), "33 dims"),
    (Record(key(), 0, "float32", (7,)), "not given"),
    (Record(key(), 0, "float32", (7,), same_as=key("nowhere")), "nowhere"),
]  # fmt: skip


@pytest.mark.parametrize("told, why", UNSTORABLE)
def test_what_cannot_be_stored_leaves_a_record_that_says_why(
    tmp_path: Path, told: Record, why: str
) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(told, None)
    archive = Archive(tmp_path / "d")
    found = archive[key()]
    assert found.kept is Kept.NOTHING and why in found.problem
    assert (found.dtype, found.shape) == (told.dtype, told.shape)
    with pytest.raises(ArchiveError, match=why):
        archive.load(found)
    with h5py.File(parts(tmp_path)[0]) as file:
        assert file["layers.0#0/output.0"].shape is None
        assert why in file["layers.0#0/output.0"].attrs["problem"].decode()
    assert audit(tmp_path / "d").sound


def test_a_source_of_another_size_is_not_stored_as_if_it_fitted(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(Record(key(), 0, "float64", (7,)), Dense(np.zeros(6)))
    assert "need 56 bytes, but it has 48" in Archive(tmp_path / "d")[key()].problem


def test_a_second_value_of_the_same_key_stays_under_another_name(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key(), np.zeros(2))
        put(sink, key(), np.ones(2))
    archive = Archive(tmp_path / "d")
    assert [name.slot for name in archive] == ["output.0", "output.0~1"]
    assert (loaded(archive, key(slot="output.0~1")) == 1).all()


def test_a_copy_that_ends_late_is_waited_for(tmp_path: Path) -> None:
    arrived = threading.Event()

    def wait() -> None:
        assert arrived.wait(5)

    bits = np.arange(50.0)
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(record(key(), bits), Dense(bits, wait))
        put(sink, key("next"), bits)
        time.sleep(0.05)
        arrived.set()
    np.testing.assert_array_equal(loaded(Archive(tmp_path / "d"), key()), bits)
    assert audit(tmp_path / "d").sound


def fail() -> None:
    raise RuntimeError("the device is lost")


class Broken(Dense):
    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        raise RuntimeError("the device is lost")


@pytest.mark.parametrize("source", [Broken(np.zeros(4)), Dense(np.zeros(4), wait=fail)])
def test_trouble_warns_once_and_keeps_what_was_there(tmp_path: Path, source: Dense) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ArchiveWriter(tmp_path / "d") as sink:
            put(sink, key("before"), np.ones(4))
            time.sleep(0.1)
            sink.put(record(key("during"), np.zeros(4)), source)
            time.sleep(0.1)
            for number in range(5):
                put(sink, key(f"after{number}"), np.ones(4))
            assert not sink.active
    assert [warning.category for warning in caught] == [CaptureWarning]
    assert "the device is lost" in str(caught[0].message)
    archive = Archive(tmp_path / "d")
    assert list(archive) == [key("before")] and not archive.complete
    assert "the device is lost" in archive.problems[0]


def test_steps_may_interleave_and_come_late(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(20):
            put(sink, key("forward", step=step), np.full(3, float(step)))
        for step in (0, 19, 5):
            put(sink, key("backward", step=step), np.full(3, -float(step)))
        sink.finish_step("Model", 19)
    archive = Archive(tmp_path / "d")
    assert archive.steps("Model") == tuple(range(20)) and len(archive) == 23
    assert (loaded(archive, key("backward", step=5)) == -5).all()


def test_a_finished_step_is_sealed_while_the_capture_goes_on(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key(), np.ones(3))
        sink.finish_step("Model", 0)
        put(sink, key(step=1), np.ones(3))
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with h5py.File(parts(tmp_path)[0]) as file:
                if "_index" in file:
                    break
        else:
            pytest.fail("the step was not sealed")


def test_a_program_that_raises_leaves_an_incomplete_run_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ArchiveWriter(tmp_path / "d", run={"mode": "x"}) as sink:
        put(sink, key(), np.ones(3))
        sink.run["versions"] = {"torch": "2.13"}
        1 / 0  # noqa: B018
    archive = Archive(tmp_path / "d")
    assert not archive.complete and "ZeroDivisionError" in archive.problems[0]
    assert archive.run[0]["run"] == {"mode": "x", "versions": {"torch": "2.13"}}
    assert (loaded(archive, key()) == 1).all()


def test_a_second_run_is_refused_unless_it_may_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for rank in (0, 1):
        with ArchiveWriter(path, rank=rank, world_size=2) as sink:
            put(sink, key("old"), np.ones(3))
    for world_size in (2, 3):
        with pytest.raises(ArchiveError, match="already holds a run"):
            ArchiveWriter(path, world_size=world_size)
    with ArchiveWriter(path, world_size=1, overwrite=True) as sink:
        put(sink, key("new"), np.ones(3))
    assert list(Archive(path)) == [key("new")] and Archive(path).ranks == (0,)


def test_texts_lie_beside_the_parts(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.text("Model", "graph-0.txt", "def forward(self, é): ...")
        sink.text("Model", "../../escape", "no")
    texts = Archive(tmp_path / "d").texts
    assert texts[0, "Model", "graph-0.txt"].read_text() == "def forward(self, é): ..."
    assert all(tmp_path / "d" in path.parents for path in texts.values())


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("parent"), np.ones(3))
        child = os.fork()
        if child == 0:
            put(sink, key("child"), np.ones(3))
            sink.close()
            os._exit(0 if not sink.active else 1)
        assert os.waitpid(child, 0)[1] == 0
        put(sink, key("parent", "output.1"), np.ones(3))
    assert {name.op for name in Archive(tmp_path / "d")} == {"parent"}


def test_no_thread_that_writes_is_there_when_a_process_forks(tmp_path: Path) -> None:
    """Python warns of them, and a program that forks has none by itself."""
    laid = threading.Event()

    def work() -> None:
        for number in range(400):
            put(sink, key(f"other.{number}"), np.full(20_000, number))
            laid.set()

    with ArchiveWriter(tmp_path / "d") as sink:
        for number in range(20):
            put(sink, key(f"own.{number}"), np.full(20_000, number))
            if not os.fork():
                os._exit(0)
            assert not [one for one in threading.enumerate() if one.name.startswith("dumpcmp")]
        other = threading.Thread(target=work)  # who wakes them again at any moment
        other.start()
        laid.wait()
        for _ in range(20):
            if not os.fork():
                os._exit(0)
        other.join()
    for _ in range(40):
        assert os.wait()[1] == 0
    found = Archive(tmp_path / "d")
    assert len(found) == 420 and audit(tmp_path / "d").sound


def test_the_ring_takes_what_shared_memory_allows_and_leaves_nothing(tmp_path: Path) -> None:
    assert rings.affordable(1 << 50) <= os.statvfs("/dev/shm").f_bavail * 4096
    assert rings.affordable(1 << 30, Path("/nowhere")) == 0
    sink = ArchiveWriter(tmp_path / "d")
    told = json.loads((sink.path / "run.json").read_text())["writer"]
    ring = Path("/dev/shm", told["ring"])
    assert ring.stat().st_size == len(sink._ring.room) + HEADER_NBYTES
    sink.close()
    assert not ring.exists()
    with ArchiveWriter(tmp_path / "e", memory="file") as sink:
        assert (sink.path / ".ring").exists()
    assert not (sink.path / ".ring").exists()


def test_what_stands_for_a_value_keeps_its_numbers_beside_it(tmp_path: Path) -> None:
    sketch = np.arange(4.0)
    stored = Stored("float64", (4,), (("min", -1.5), ("count", 7), ("note", "é")))
    told = Record(key(), 0, "bfloat16", (1000, 1000), kept=Kept.SUMMARY, stored=stored)
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.call(Call("Model", 0, Op("layers.0"), 0, 0))
        sink.put(told, Dense(sketch))
    archive = Archive(tmp_path / "d")
    found = archive[key()]
    assert (found.kept, found.shape, found.stored) == (Kept.SUMMARY, (1000, 1000), stored)
    np.testing.assert_array_equal(archive.load(found).bits, sketch)
    with h5py.File(parts(tmp_path)[0]) as file:
        shown = file["layers.0#0/output.0"]
        assert (shown.attrs["min"], shown.attrs["count"]) == (-1.5, 7)
        assert list(shown.attrs["shape"]) == [1000, 1000] and shown.shape == (4,)


def test_keys_come_in_order_of_execution(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for order in (3, 1, 2):
            put(sink, key(f"op{order}"), np.ones(1), order)
    assert [name.op for name in Archive(tmp_path / "d")] == ["op1", "op2", "op3"]


class Digested(Dense):
    """A Source that says what the digest of its bytes is."""

    digest = ""


@pytest.mark.parametrize("true", [True, False])
def test_a_digest_that_comes_with_a_value_is_taken_over(tmp_path: Path, true: bool) -> None:
    source = Digested(np.arange(9.0))
    source.digest = xxh3_128_hexdigest(source.bits.data) if true else "f" * 32
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(record(key(), np.arange(9.0)), source)
    assert Archive(tmp_path / "d")[key()].digest == source.digest
    assert audit(tmp_path / "d").sound is true


def test_many_small_values_take_no_more_room_each_than_few(tmp_path: Path) -> None:
    """However often a part is committed: a group is not written anew for every value in it."""

    def nbytes_each(count: int) -> float:
        facts = {"schema": 3, "model": "Model", "step": 0, "rank": 0, "world_size": 1, "part": 0}
        part = Part(tmp_path / f"part-{count:04d}.h5", facts)
        content = np.ones(4)
        form = Template(schema.form_of(record(key(), content)))
        number = part.append_form(form)
        for order in range(count):
            part.append_call(Call("Model", 0, Op("block/add"), order, order))
            part.append_value((order, form, number, order), content.view(np.uint8).data)
            if order % 4 == 0:
                part.commit_in_time()
        part.seal()
        return part.path.stat().st_size / count

    assert nbytes_each(3000) < 300 + 32 > nbytes_each(300) - 10, "32 are its data"


@pytest.mark.parametrize("num_values", [1, 40, 2000])
def test_nobody_waits_for_a_thread_that_has_ended(
    num_values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it runs out of memory while it tells that it has none."""
    monkeypatch.setattr(Drain, "_work", lambda _: None)
    with (
        pytest.warns(UserWarning, match="the thread that writes has ended"),
        ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 16, buffer=1 << 16) as sink,
    ):
        for number in range(num_values):
            put(sink, key(f"op{number}"), np.ones(1000))
    assert not Archive(tmp_path / "d").complete
