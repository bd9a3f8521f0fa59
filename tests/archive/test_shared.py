"""Laws of what steps share: it is stored once, steps need no other step, and nothing is guessed."""

from __future__ import annotations

import random
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import dumpcmp
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.sameness import same_contents
from dumpcmp.archive.read.scan import read_part
from dumpcmp.archive.schema import SHARED
from dumpcmp.archive.upload import upload
from dumpcmp.archive.write import drain, finishing, pens, recurring, scribe, shelving
from dumpcmp.archive.write.finishing import LARGE_NBYTES
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.compacting import compact
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.record import Call, Kept
from dumpcmp.nouns.row import Verdict
from tests.archive.test_fuzz import mutated
from tests.archive.values import Dense, key, loaded, parts, record

MIDDLE, LARGE = 5_000, LARGE_NBYTES // 4 + 10  # elements
Bits = NDArray[np.float32]


def weights(large: int = LARGE) -> dict[str, Bits]:
    sizes = {"tiny": 4, "norm": MIDDLE, "linear": 2 * MIDDLE, "embed": large}
    return {op: np.arange(n, dtype=np.float32) + n for op, n in sizes.items()}


def output(op: str, step: int) -> Bits:
    return np.full(MIDDLE, 100 * step + list(weights()).index(op), np.float32)


def put_step(sink: ArchiveWriter, step: int, held: dict[str, Bits], *, late: bool = False) -> None:
    """A step of functions that take weights, which the first step has of modules too."""
    for order, (op, bits) in enumerate(held.items()):
        sink.call(Call("Model", step, Op(op), 0, order))
        slot = "param.weight" if step == 0 and op != "linear" else "input.1"
        first, wait = key(op, slot, step), (lambda: None) if late else None
        sink.put(record(first, bits, order=order), Dense(bits, wait))
        again = replace(record(key(op, "input.2", step), bits, order=order), same_as=first)
        sink.put(again, None)
        result = output(op, step)
        sink.put(record(key(op, "output.0", step), result, order=order), Dense(result))
    sink.finish_step("Model", step)


def dump(path: Path, steps: int = 4, large: int = 20, late: bool = False, **options: Any) -> Path:
    with ArchiveWriter(path, **options) as sink:
        for step in range(steps):
            put_step(sink, step, weights(large), late=late)
    return path


def expected(name: Key, large: int = 20) -> Bits:
    return output(name.op, name.step) if name.slot == "output.0" else weights(large)[name.op]


def check_values(path: Path, large: int = 20) -> None:
    archive = Archive(path)
    for name, found in archive.items():
        assert np.array_equal(archive.load(found).bits, expected(name, large)), name
        wanted = {"input.1", "param.weight"} if name.slot == "input.2" else {None}
        assert (found.same_as and found.same_as.slot) in wanted
        assert found.same_as is None or found.same_as.step == name.step


def shared(path: Path) -> list[Path]:
    return [part for part in parts(path) if part.parent.name == "shared"]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("ring", [1 << 20, 64 << 20], ids=["too large for the ring", "in the ring"])
def test_what_comes_again_is_stored_once(tmp_path: Path, ring: int, late: bool) -> None:
    path = dump(tmp_path / "d", large=LARGE, late=late, ring_nbytes=ring)
    check_values(path, LARGE)
    assert audit(path).sound
    sizes = {part.parent.name: 0 for part in parts(path)}
    for part in parts(path):
        sizes[part.parent.name] += part.stat().st_size
        with h5py.File(part) as file:
            file.visititems(lambda name, value: value if name.endswith("output.0") else None)
    own = sum(output(op, 0).nbytes for op in weights())
    assert all(sizes[step] < own + 20_000 for step in ("1", "2", "3"))
    nbytes = sum(bits.nbytes for op, bits in weights(LARGE).items() if op != "tiny")
    assert nbytes < sizes["shared"] < nbytes + 20_000
    assert sizes["0"] < own + weights()["linear"].nbytes + 20_000, "weights lie in no step at all"
    (run,) = Archive(path).run.values()
    saved = 3 * nbytes - weights()["linear"].nbytes
    assert run["nbytes_shared"] == saved and run["num_shared"] == 2 + 3 * 3


@pytest.mark.skipif(finishing._core is None, reason="the compiled core is not built")
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_both_ways_share_the_same(
    tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "COMMIT_SECONDS", float("inf"))  # or parts differ by the clock
    written = []
    for way in ("quick", "slow"):
        monkeypatch.setattr(secrets, "randbits", lambda _: 7)
        path = dump(tmp_path / way, large=LARGE, late=late)
        written.append([(each.parent.name, each.read_bytes()) for each in parts(path)])
        monkeypatch.setattr(finishing, "_core", None)
    assert len(written[0]) == 6 and written[0] == written[1]


@pytest.mark.parametrize("way", ["quick", "slow"])
def test_of_the_first_step_weights_alone_are_looked_at_by_themselves(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def spy(value: Any, *others: Any) -> Any:
        looked_at.append(value[5].form.slot)
        return shelving.shelved(value, *others)

    monkeypatch.setattr(scribe, "shelved", spy)
    if way == "slow":
        monkeypatch.setattr(finishing, "_core", None)
    dump(tmp_path / "d", steps=1)
    assert looked_at == ["param.weight"]
    dump(tmp_path / "e", steps=2)
    assert looked_at[1:] == ["param.weight", "input.1", "input.1"], "and then what came before"


def test_any_tool_finds_shared_values_where_the_step_has_them(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    for step in range(4):
        (part,) = path.glob(f"*/Model/{step}/part-0000.h5")
        with h5py.File(part) as file:
            for op, bits in weights(20).items():
                slot = "param.weight" if step == 0 and op != "linear" else "input.1"
                for name in (slot, "input.2"):
                    assert np.array_equal(file[f"{op}#0/{name}"][...], bits)


def test_another_shape_of_the_same_bytes_is_another_value(tmp_path: Path) -> None:
    bits = np.arange(10_000, dtype=np.float32)
    shapes = [(100, 100), (100, 100), (10_000,), (100, 100), (10_000,)]
    with ArchiveWriter(tmp_path / "d") as sink:
        for step, shape in enumerate(shapes):
            laid = bits.reshape(shape)
            sink.put(record(key(step=step), laid), Dense(laid))
            sink.finish_step("Model", step)
    archive = Archive(tmp_path / "d")
    assert [loaded(archive, key(step=step)).shape for step in range(5)] == shapes
    for step, shape in enumerate(shapes):
        with h5py.File(next((tmp_path / "d").glob(f"*/Model/{step}/*.h5"))) as file:
            assert file["layers.0#0/output.0"].shape == shape


@pytest.mark.parametrize("gone", [(0,), (0, 1, 2), (3,)])
def test_a_step_needs_no_other_step(tmp_path: Path, gone: tuple[int, ...]) -> None:
    path = dump(tmp_path / "d")
    for step in gone:
        shutil.rmtree(next(path.glob(f"*/Model/{step}")))
    check_values(path)
    assert Archive(path).steps("Model") == tuple(s for s in range(4) if s not in gone)
    assert all("token" in finding.problem for finding in audit(path).findings)


def test_a_link_waits_for_its_value_and_for_none_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, write, done = shelving.put_value, Part.write, []

    def put_value(part: Part, *rest: Any) -> None:
        time.sleep(0.3 if part.facts["model"] == "Slow" else 0)
        put(part, *rest)
        done.append(("value", part.facts["model"]))

    def written(part: Part, content: Any, address: int) -> None:
        if b"[%d," % SHARED in bytes(content[:4096]):
            done.append(("link", part.facts["model"]))
        write(part, content, address)

    monkeypatch.setattr(pens, "num_pens", lambda: 3)
    monkeypatch.setattr(shelving, "put_value", put_value)
    monkeypatch.setattr(Part, "write", written)
    bits = {model: np.full(LARGE, n, np.float32) for n, model in enumerate(("Slow", "Fast"))}
    with ArchiveWriter(tmp_path / "d") as sink, sink._drain.working:  # until all have come
        for number, model in enumerate(("Slow", "Fast", "Slow")):
            op = Op(f"op{number}")
            sink.call(Call(model, 0, op, 0, number))
            name = Key(model, 0, op, 0, Slot("param.weight"))
            sink.put(record(name, bits[model], order=number), Dense(bits[model]))
    assert done.index(("value", "Slow")) < done.index(("link", "Slow"))
    assert done.index(("link", "Fast")) < done.index(("value", "Slow"))
    assert done.count(("value", "Slow")) == done.count(("value", "Fast")) == 1


def damage(path: Path, how: str) -> None:
    part = shared(path)[0]
    match how:
        case "missing":
            part.unlink()
        case "gone":
            shutil.rmtree(part.parent)
        case "empty":
            part.write_bytes(b"")
        case "cut":
            part.write_bytes(part.read_bytes()[:3_000])
        case "of another run":
            with ArchiveWriter(path.with_name("other")) as sink:
                put_step(sink, 0, {op: bits + 1 for op, bits in weights(20).items()})
            shutil.copy(shared(path.with_name("other"))[0], part)


def test_what_is_wrong_is_said_once_however_often_a_step_is_read(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    damage(path, "missing")
    archive = Archive(path)
    for _ in range(3):
        assert len(list(archive)) == 48
        archive.forget()
    assert len(archive.problems) == len({*archive.problems}) == 4  # steps


@pytest.mark.parametrize("how", ["missing", "gone", "empty", "cut", "of another run"])
def test_values_of_a_shared_part_that_is_not_there_say_so(tmp_path: Path, how: str) -> None:
    path, whole = dump(tmp_path / "d"), dump(tmp_path / "whole")
    damage(path, how)
    archive, lost = Archive(path), set()
    for name, found in archive.items():
        try:
            assert np.array_equal(archive.load(found).bits, expected(name))
        except ArchiveError as error:
            lost.add(name)
            assert "shared part" in str(error) or found.kept is Kept.FULL
    assert {name for name in archive if name.op == "norm" and name.slot != "output.0"} <= lost
    assert not any(name.slot == "output.0" or name.op == "tiny" for name in lost)
    assert not audit(path).sound and not audit(path, repair=True).sound
    for golden, target in ((whole, path), (path, whole)):
        rows = {row.key: row.verdict for row in dumpcmp.compare(golden, target).rows}
        assert all(rows[name] is not Verdict.PASS for name in lost if name in rows)
        assert Verdict.PASS in rows.values() and any(name in rows for name in lost)


def test_a_changed_byte_of_a_shared_part_is_found(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    octets = bytearray(shared(path)[0].read_bytes())
    octets[octets.index(weights()["norm"].tobytes()) + 5] ^= 1
    shared(path)[0].write_bytes(octets)
    assert ["another digest" in finding.problem for finding in audit(path).findings] == [True]


def test_summaries_of_shared_values_are_the_steps_own(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    before = dict(Archive(path).items())
    done = compact(path, keep_full=["norm"])
    assert not done.problems and len(shared(path)) == 1, "what norm takes"
    after = Archive(path)
    assert after.keys() == before.keys() and audit(path).sound
    for name, found in after.items():
        assert found.same_as == before[name].same_as
        if name.op in ("norm", "tiny"):
            is_output = name.op == "tiny" and name.slot == "output.0"
            assert found.kept is (Kept.SUMMARY if is_output else Kept.FULL)
        else:
            assert found.kept is (Kept.FULL if before[name].shape == (20,) else Kept.SUMMARY)
    assert not compact(path).problems and not list(path.glob("*/Model/shared"))
    assert audit(path).sound and dumpcmp.compare(path, path).exit_code == 0


def test_an_audit_tells_of_shared_parts_that_no_step_leads_to(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    held = {part: part.read_bytes() for part in shared(path)}
    assert held and not audit(path).findings
    compact(path)
    assert not shared(path)
    for part, written in held.items():  # as a crash leaves it before the last of a compaction
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(written)
    told = audit(path)
    assert told.sound and {one.place for one in told.findings} == held.keys()
    assert all("no step leads to it" in one.problem for one in told.findings)
    step = next(part for part in parts(path) if part.parent.name == "2")
    step.write_bytes(step.read_bytes()[:-64])
    assert not any("no step leads" in one.problem for one in audit(path).findings)
    compact(path)
    assert shared(path) == list(held), "which may be its"


def test_a_run_that_goes_on_keeps_what_it_may_lead_to(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with ArchiveWriter(path) as sink:
        for step in range(2):
            put_step(sink, step, weights(20))
        sink.settle()
        while not compact(path).total.num_parts:
            pass
        assert shared(path)
        put_step(sink, 2, weights(20))
    assert not Archive(path).problems and audit(path).sound
    late = [name for name in Archive(path) if name.step == 2]
    assert all(np.array_equal(loaded(Archive(path), name), expected(name)) for name in late)
    compact(path)
    assert not shared(path) and audit(path).sound


def test_each_rank_has_its_own(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path / "d", rank=rank, world_size=2)
    assert len({part.parts[-4] for part in shared(tmp_path)}) == 2
    check_values(tmp_path / "d")
    shutil.rmtree(shared(tmp_path)[-1].parent)  # of the second
    check_values(tmp_path / "d")  # as the first has them
    first, second = Archive(tmp_path / "d").shards(key("norm", "input.1", 3))
    assert not first.problem and "shared part 0" in second.problem


def test_models_share_nothing_with_each_other(tmp_path: Path) -> None:
    bits = weights()["norm"]
    with ArchiveWriter(tmp_path / "d") as sink:
        for step, model in enumerate(("One", "Other", "One")):
            name = Key(model, step, Op("op"), 0, "output.0")
            sink.put(record(name, bits), Dense(bits))
    assert [part.parts[-3] for part in shared(tmp_path)] == ["One"]


@pytest.mark.parametrize("shares", [(True, True), (True, False), (False, True)])
def test_equal_steps_are_still_told_by_their_indexes(
    tmp_path: Path, shares: tuple[bool, bool]
) -> None:
    runs = [Archive(dump(tmp_path / f"{n}", shares=each)) for n, each in enumerate(shares)]
    for step in range(4):
        contents = same_contents(*(run.sole_step("Model", step) for run in runs))
        assert contents is not None
        values = list(runs[0].stored_in(contents))
        assert len(values) == 2 * len(weights())
    assert dumpcmp.compare(runs[0].path, runs[1].path).exit_code == 0


def test_a_part_that_another_tool_wrote_leads_to_shared_values(tmp_path: Path) -> None:
    path = dump(tmp_path / "d")
    for part in path.glob("*/Model/*/part-0000.h5"):
        if part.parent.name == "shared":
            continue
        with h5py.File(part) as source, h5py.File(part.with_suffix(".copy"), "w") as copy:
            for name in source:
                if name != "_index":
                    source.copy(name, copy)
        part.with_suffix(".copy").replace(part)
    archive = Archive(path)
    for name, found in archive.items():
        assert np.array_equal(archive.load(found).bits, expected(name))
    (part,) = path.glob("*/Model/3/part-0000.h5")
    for gone in shared(path):
        gone.unlink()
    told = {name: found.problem for name, found in Archive(path).items() if name.step == 3}
    assert told and all(bool(why) is (name.slot != "output.0" and name.op in ("norm", "linear"))
                        for name, why in told.items())  # fmt: skip
    assert read_part(part, "Model", 3, 0, []).problems


def test_mutants_open_or_give_an_archive_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recurring, "LEAST_NBYTES", 0)
    held = {op: np.arange(8, dtype=np.float32) + n for n, op in enumerate(weights())}
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(2):
            put_step(sink, step, held)
    chance = random.Random(0)
    rows = read_part(next(tmp_path.glob("d/*/Model/1/*.h5")), "Model", 1, 0, []).rows
    assert (rows["part"] >= SHARED).any()
    for part in [each for each in parts(tmp_path) if each.parent.name != "0"]:
        whole = part.read_bytes()
        for _ in range(60):
            part.write_bytes(mutated(whole, chance))
            try:
                archive = Archive(tmp_path / "d")
                for found in archive.values():
                    try:
                        archive.load(found).numbers().sum()
                    except ArchiveError as error:
                        assert error.message
                audit(tmp_path / "d")
            except ArchiveError as error:
                assert str(part) in str(error)
        part.write_bytes(whole)


def test_a_store_has_what_steps_share(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    path, url = dump(tmp_path / "d"), "memory://shared/d"
    assert upload(path, url).is_whole
    try:
        archive = Archive(url)
        for name, found in archive.items():
            assert np.array_equal(archive.load(found).bits, expected(name))
        assert audit(url).sound and dumpcmp.compare(path, url).exit_code == 0
        done = compact(url)
        assert not done.problems and audit(url).sound
        there = fsspec.filesystem("memory").find("/shared/d")
        assert there and not [name for name in there if "Model/shared" in name]
        assert all(found.problem == "" for found in Archive(url).values())
    finally:
        fsspec.filesystem("memory").store.clear()
