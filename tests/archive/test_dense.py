"""Parts of many small values, laid out anew when they are sealed: small, plain HDF5, and whole."""

import errno
import itertools
import os
import random
import secrets
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from dumpcmp.archive import schema
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import Found, journal_records
from dumpcmp.archive.rewrite import Condensing, rewrite
from dumpcmp.archive.write import arrangement, dense, drain
from dumpcmp.archive.write.arrangement import arrange
from dumpcmp.archive.write.part_tree import PartTree
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.record import Call, Record, Stored
from tests.archive.values import SMALL_NUMBERS, Dense, key, loaded, parts, record

STRIKES = int(os.environ.get("DUMPCMP_FAULTS", "12"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
STRUCK = (schema.CALL, schema.FORM, schema.VALUE, schema.LINK)
LINK = schema.LINK
STORED = Stored("float64", (1,))


def ops(path: Path, count: int, part_nbytes: int = 1 << 30) -> Path:
    """So many ops on four numbers: each takes what the one before gave, and gives something new."""
    with ArchiveWriter(path, part_nbytes=part_nbytes) as sink:
        for number in range(count):
            op = Op("block/add")
            told = ("torch.add", "model.py:12")
            sink.call(Call("Model", 0, op, number, number, *told, arguments='{"args":[1]}'))
            if number:
                same = key(op, call=number - 1)
                taken = key(op, "input.0", call=number)
                sink.put(Record(taken, number, "float64", (4,), (1,), same_as=same), None)
            numbers = np.arange(4.0) + number
            sink.put(record(key(op, call=number), numbers, order=number), Dense(numbers))
    return path


def facts(path: Path) -> dict[Key, tuple[object, ...]]:
    """All that an archive says, and what its values are; not where they lie."""
    archive = Archive(path)
    return {
        name: (
            found.order, found.dtype, found.shape, found.stride, found.kept, found.problem,
            found.same_as, found.digest, archive.calls[name.site],
            loaded(archive, name).tobytes() if found.kept == "full" else b"",
        )
        for name, found in archive.items()
    }  # fmt: skip


def every(path: Path) -> Path:
    """A part with a value of each dtype, links, and one that could not be stored."""
    with ArchiveWriter(path) as sink:
        for order, (name, bits) in enumerate(SMALL_NUMBERS.items()):
            op = Op(f"layers.{order}/{name}/é[%]")
            sink.call(Call("Model", 0, op, 0, order, "torch.f", "m.py:1", arguments="[1]"))
            for slot, value in (("output.0", bits), ("output.1", bits[:0])):
                sink.put(record(key(op, slot), value, name, order), Dense(value))
            same = Record(key(op, "input.0"), order, name, bits.shape, same_as=key(op))
            sink.put(same, None)
        sink.call(Call("Model", 0, Op("idle"), 0, 98))
        sink.put(Record(key("sparse"), 99, "float32", (2,), problem="sparse"), None)
    return path


def test_a_value_costs_no_more_than_300_bytes_besides_its_own(tmp_path: Path) -> None:
    count = 2000
    ops(tmp_path / "d", count)
    (part,) = parts(tmp_path / "d")
    assert (part.stat().st_size - 32 * count) / (2 * count - 1) < 200
    assert audit(tmp_path / "d").sound


@pytest.mark.parametrize("part_nbytes", [1 << 30, 30_000])
def test_nothing_is_said_differently(
    tmp_path: Path, part_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops(tmp_path / "dense", 150, part_nbytes)
    every(tmp_path / "dense of all")
    monkeypatch.setattr(dense, "FEWEST", 1 << 30)
    ops(tmp_path / "loose", 150, part_nbytes)
    every(tmp_path / "loose of all")
    for name in ("", " of all"):
        assert facts(tmp_path / f"dense{name}") == facts(tmp_path / f"loose{name}")
        sizes = [
            sum(part.stat().st_size for part in parts(tmp_path / f"{kind}{name}"))
            for kind in ("dense", "loose")
        ]
        assert 2 * sizes[0] < sizes[1]
        assert audit(tmp_path / f"dense{name}").sound


def test_any_hdf5_tool_finds_the_values_at_their_places(tmp_path: Path) -> None:
    ops(tmp_path / "d", 150, 30_000)
    found = 0
    for part in parts(tmp_path / "d"):
        with h5py.File(part) as file:
            for name, call in file["block"].items():
                number = int(name.partition("#")[2])
                if "output.0" in call:
                    assert call["output.0"][...].tolist() == [number + i for i in range(4)]
                    found += 1
                if "input.0" in call:  # also where another part has it
                    assert call["input.0"][0] == number - 1
            assert file["_index/calls"][...].reshape(-1)[0].startswith(b'[["block/add"')
            file.visititems(lambda *_: None)
    assert found == 150


def steps(path: Path) -> Path:
    """Steps of two models in turns: alike, but for one with a call more, a shape and a link."""
    with ArchiveWriter(path) as sink:
        for step, model in itertools.product(range(6), ("One", "Other")):
            odd = step == 3
            for number in range(40 + odd):
                call = Call(model, step, Op(f"{model}.{number % 5}/add"), number, number, "torch.f")
                sink.call(call)
                numbers = np.random.default_rng([step, number]).random(4 + (odd and number == 7))
                name = Key(model, step, call.op, number, "output.0")
                sink.put(record(name, numbers, order=number), Dense(numbers))
                if number % 3 and not (odd and number == 8):
                    first = Key(model, step, Op(f"{model}.0/add"), 0, "output.0")
                    taken = replace(name, slot=Slot("input.0"))
                    sink.put(Record(taken, number, "float64", (4,), (1,), same_as=first), None)
            sink.finish_step(model, step)
    return path


def test_a_step_is_laid_out_like_one_before_and_no_byte_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arranged = Mock(wraps=arrange)
    monkeypatch.setattr(arrangement, "arrange", arranged)
    monkeypatch.setattr(secrets, "randbits", lambda _: 7)
    written = []
    for way in ("known", "anew"):
        found = steps(tmp_path / way)
        written.append({part.relative_to(found): part.read_bytes() for part in parts(found)})
        assert arranged.call_count == (4 if way == "known" else 16), "two of each model"
        monkeypatch.setattr(arrangement, "_key_of", lambda *_: None)
    assert len(written[0]) == 12 and written[0] == written[1]
    assert audit(tmp_path / "known").sound


def test_a_part_that_keeps_its_journal_has_the_groups_of_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "FEWEST", 1 << 30)
    monkeypatch.setattr(drain, "COMMIT_SECONDS", float("inf"))
    laid = Mock(wraps=PartTree.lay_all)
    monkeypatch.setattr(PartTree, "lay_all", lambda *what: laid(*what))
    found = steps(tmp_path / "known")
    assert laid.call_count == 4, "two of each model"
    monkeypatch.setattr(arrangement, "_key_of", lambda *_: None)
    anew = steps(tmp_path / "anew")
    assert laid.call_count == 4 + 12
    assert audit(found).sound
    assert facts(found) == facts(anew)
    for one, other in zip(parts(found), parts(anew), strict=True):
        assert tree(one) == tree(other)


def tree(path: Path) -> dict[str, object]:
    """What any HDF5 tool finds in a part: groups with their attributes, values and their links."""
    found: dict[str, object] = {}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        told = sorted((word, str(value)) for word, value in item.attrs.items())
        held = item[...].tobytes() if isinstance(item, h5py.Dataset) else sorted(item)
        found[name] = told, held, h5py.h5o.get_info(item.id).rc

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def test_one_that_another_program_rewrote_is_read_by_its_index(tmp_path: Path) -> None:
    before = facts(every(tmp_path / "d"))
    (part,) = parts(tmp_path / "d")
    draft = part.with_suffix(".draft")
    with h5py.File(part) as old, h5py.File(draft, "w", libver="latest") as new:
        new.attrs.update(old.attrs)
        for name in old:
            old.copy(name, new)
    draft.replace(part)
    assert facts(tmp_path / "d") == before


def test_where_the_disk_has_no_room_for_it_the_part_is_sealed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts(every(tmp_path / "d"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(dense._Laying, "_write_waiting", full)
    after = every(tmp_path / "e")
    assert facts(after) == before and audit(after).sound and Archive(after).complete
    with h5py.File(parts(after)[0]) as file:
        assert file["layers.0/float64/é[%25]#0/output.0"][1] == -1.5
    assert not list(after.rglob(".new-*"))


def lead_nowhere(content: bytearray, link: Found) -> None:
    """Let a link lead to a row that never was, and its checksum be right."""
    prefix = bytearray(link.prefix[:64] + b"[0,4000000]".ljust(len(link.prefix) - 64))
    prefix[4:8] = schema.CRC.pack(schema.checksum(prefix, LINK))
    content[link.start : link.data_start] = prefix


def test_a_part_with_lost_records_is_mended_and_compacted(tmp_path: Path) -> None:
    """Whatever is struck of its journal: links, calls, forms or values, in the middle or last."""
    sink = ArchiveWriter(tmp_path / "d")
    for number in range(40):
        op, numbers = Op("block/add"), np.arange(4.0) + number
        sink.call(Call("Model", 0, op, number, number, "torch.add"))
        for place in range(number % 3):  # some take what came long before
            taken = key(op, f"input.{place}", call=number)
            same = key(op, call=number // (2 + place))
            sink.put(Record(taken, number, "float64", (4,), (1,), same_as=same), None)
        sink.put(record(key(op, call=number), numbers, order=number), Dense(numbers))
    time.sleep(0.2)
    (part,) = parts(tmp_path / "d")
    content = part.read_bytes()
    sink.close()
    with PartFile(part) as file:
        assert any(found.fields.kind == schema.DENSE for found in journal_records(file, []))
    part.write_bytes(content)
    with PartFile(part) as file:
        records = [r for r in journal_records(file, []) if r.fields.kind in STRUCK]
    draws = random.Random(SEED)
    for trial in range(STRIKES):
        changed = bytearray(content)
        for found in draws.sample(records, draws.randrange(1, 6)) if trial else records[-3:]:
            changed[found.start : found.end] = bytes(found.end - found.start)
        if trial % 2:
            lead_nowhere(changed, draws.choice([r for r in records if r.fields.kind == LINK]))
        part.write_bytes(changed)
        audit(tmp_path / "d", repair=True)
        with PartFile(part) as file:
            assert any(found.fields.kind == schema.DENSE for found in journal_records(file, []))
        for _ in range(2):
            archive = Archive(tmp_path / "d")
            for name, kept in archive.items():
                if kept.kept == "full" and kept.same_as is None:
                    assert loaded(archive, name)[0] == name.call
            with h5py.File(part) as file:
                file.visititems(lambda *_: None)
            rewrite(
                part, Condensing(lambda r: r.key.call % 2 == 0, lambda *_: (STORED, np.ones(1)))
            )


def test_a_damaged_index_is_told_and_nothing_is_lost_over_it(tmp_path: Path) -> None:
    every(tmp_path / "d")
    (part,) = parts(tmp_path / "d")
    with h5py.File(part) as file:
        place = file["_index/records"].id.get_chunk_info(0).byte_offset
    content = bytearray(part.read_bytes())
    content[place + 10] ^= 0xFF
    part.write_bytes(content)
    for repair in (False, True):
        said = " ".join(found.problem for found in audit(tmp_path / "d", repair=repair).findings)
        assert "index" in said or "damaged" in said
    assert part.read_bytes() == content
    assert Archive(tmp_path / "d").problems or not list(Archive(tmp_path / "d"))
