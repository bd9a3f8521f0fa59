"""A part whose bytes were changed opens or gives an ArchiveError: nothing else, and not slowly.

``DUMPCMP_MUTANTS=2000 pytest tests/archive/test_fuzz.py`` is the long version.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from dumpcmp.archive import schema
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import Found, journal_records
from dumpcmp.archive.rewrite import Condensing, rewrite
from dumpcmp.archive.write import dense
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Record, Stored
from tests.archive.values import SMALL_NUMBERS, Dense, key, loaded, parts, put, record

MUTANTS = int(os.environ.get("DUMPCMP_MUTANTS", "300"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
LONGEST = 5.0  # seconds of computing for one mutant
MEMORY = 1 << 30


@pytest.fixture
def loose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed parts keep their journals."""
    monkeypatch.setattr(dense, "FEWEST", sys.maxsize)


def sample(path: Path, *, sealed: bool) -> bytes:
    """A part with some of everything, small, so that a change hits something that matters."""
    sink = ArchiveWriter(path)
    for order, (name, bits) in enumerate(SMALL_NUMBERS.items()):
        op = Op(f"layers.{order}/{name}")
        sink.call(Call("Model", 0, op, 0, order, "torch.f", "m.py:1", arguments="[1]"))
        sink.put(record(key(op), bits, name, order), Dense(bits))
        again = record(key(op, "input.0"), bits, name, order)
        fields = {name: getattr(again, name) for name in ("key", "order", "dtype", "shape")}
        sink.put(Record(**fields, same_as=key(op)), None)
    sink.put(Record(key("sparse"), 99, "float32", (2,), problem="sparse"), None)
    if not sealed:
        time.sleep(0.2)
    written = None if sealed else parts(path)[0].read_bytes()
    sink.close()
    return written or parts(path)[0].read_bytes()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """`content` with bytes flipped, cut off, doubled, or lengths and addresses changed."""
    changed = bytearray(content)
    match chance.randrange(5):
        case 0:
            for _ in range(chance.choice((1, 1, 2, 8, 64))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        case 1:
            del changed[chance.randrange(len(changed)) :]
        case 2:
            at = chance.randrange(len(changed)) & -8
            number = chance.choice((0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
            changed[at : at + 8] = number.to_bytes(8, "little")
        case 3:
            at, nbytes = chance.randrange(len(changed)), chance.randrange(1, 4096)
            changed[at : at + nbytes] = chance.randbytes(nbytes)
        case 4:
            at, nbytes = chance.randrange(len(changed)), chance.randrange(1, 4096)
            source = chance.randrange(len(changed))
            changed[at:at] = changed[source : source + nbytes]
    return bytes(changed)


def peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_everything(path: Path) -> None:
    archive = Archive(path)
    for found in archive.values():
        try:
            archive.load(found).numbers().sum()
        except ArchiveError as error:
            assert error.message
    assert len(archive.calls) >= 0 and archive.problems is not None
    audit(path)


@pytest.mark.parametrize("state", ["sealed", "unsealed", "loose"])
def test_a_mutant_opens_or_gives_an_archive_error(
    tmp_path: Path, state: str, request: pytest.FixtureRequest
) -> None:
    if state == "loose":
        request.getfixturevalue("loose")
    content = sample(tmp_path / "d", sealed=state != "unsealed")
    (part,) = parts(tmp_path / "d")
    chance = random.Random(f"{state} {SEED}")
    outcomes = {"opened": 0, "refused": 0}
    before = peak_nbytes()
    for _ in range(MUTANTS // 3):
        part.write_bytes(mutated(content, chance))
        began = time.process_time()
        try:
            read_everything(tmp_path / "d")
            outcomes["opened"] += 1
        except ArchiveError as error:
            assert str(part) in str(error)
            outcomes["refused"] += 1
        assert time.process_time() - began < LONGEST
    assert outcomes["opened"] and sum(outcomes.values()) == MUTANTS // 3
    assert peak_nbytes() - before < MEMORY


def test_what_a_damaged_part_still_gives_is_right(tmp_path: Path) -> None:
    """Of an unsealed part with changed records, those that can still be read are the true ones."""
    path = tmp_path / "d"
    sink = ArchiveWriter(path)
    for number in range(50):
        bits = np.full(16, float(number))
        sink.put(record(key(f"op{number}"), bits, order=number), Dense(bits))
    time.sleep(0.2)
    (part,) = parts(path)
    content = part.read_bytes()
    sink.close()
    chance = random.Random(5)
    for _ in range(40):
        changed = bytearray(content)
        changed[chance.randrange(128, len(changed))] ^= 0xFF
        part.write_bytes(changed)
        archive = Archive(path)
        wrong = [
            name for name, found in archive.items()
            if (archive.load(found).bits != float(name.op[2:])).any()
        ]  # fmt: skip
        assert len(wrong) <= 1 and (not wrong or audit(path).exit_code == 1)


def torn(content: bytearray, start: int, end: int) -> None:
    """The second half of the record was not written."""
    content[start + 70 : end] = bytes(end - start - 70)


def missing(content: bytearray, start: int, end: int) -> None:
    """Nothing of the record was written."""
    content[start:end] = bytes(end - start)


DAMAGES: dict[str, Callable[[bytearray, int, int], None]] = {"torn": torn, "missing": missing}
KINDS = {"call": schema.CALL, "form": schema.FORM, "link": schema.LINK, "value": schema.VALUE}
STATES = ("unsealed", "index damaged", "sealed")


def records_of(part: Path) -> list[Found]:
    with PartFile(part) as file:
        return list(journal_records(file, []))


def in_state(path: Path, state: str) -> bytes:
    """The part of a sample whose index is not there yet, cannot be read, or is sound."""
    content = bytearray(sample(path, sealed=state != "unsealed"))
    if state == "index damaged":
        (index,) = (r for r in records_of(parts(path)[0]) if r.fields.kind == schema.INDEX)
        content[index.data_start] ^= 0xFF
    return bytes(content)


def lost_with(lost: Found, records: list[Found]) -> set[int]:
    """The rows that cannot be known where `lost` is: its own, those it names, links to them."""
    kind, rows = lost.fields.kind, {r.fields.row: r for r in records if r.fields.kind in (4, 5)}
    gone = {
        row for row, found in rows.items()
        if found is lost
        or (kind == schema.CALL and found.fields.call == lost.fields.call)
        or (kind == schema.FORM and found.fields.form == lost.fields.form)
    }  # fmt: skip
    links = {row for row, found in rows.items() if found.fields.kind == schema.LINK}
    return gone | {row for row in links if rows[row].listed()[1] in gone}


@pytest.mark.each_value_once
@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_record_costs_only_what_it_names_and_is_told(
    tmp_path: Path, kind: str, damage: str, state: str
) -> None:
    path = tmp_path / "d"
    content = in_state(path, state)
    (part,) = parts(path)
    whole, records = Archive(path), records_of(part)
    keys = list(whole)  # values are put in order of execution, which is that of the rows
    bits = {name: loaded(whole, name).tobytes() for name in keys if whole[name].kept == "full"}
    calls = whole.calls.keys()
    for lost in [found for found in records if found.fields.kind == KINDS[kind]]:
        changed = bytearray(content)
        DAMAGES[damage](changed, lost.start, lost.end)
        part.write_bytes(changed)
        gone = {keys[row] for row in lost_with(lost, records)}
        if state == "sealed":
            gone = gone if kind == "value" else set()
            assert audit(path).sound is (kind != "value" or not lost.fields.nbytes)
        elif gone:
            assert f"at byte {lost.start}" in " ".join(f.problem for f in audit(path).findings)
        for repair in (False, True):
            if repair:
                mended = " ".join(f.problem for f in audit(path, repair=True).findings)
                assert state == "sealed" or f"at byte {lost.start}" in mended
            after = Archive(path)
            assert {name for name in bits if name in after} >= bits.keys() - gone
            for name in gone & after.keys() if state != "sealed" else ():  # links stay, and say why
                assert after[name].kept == "nothing" and "was lost" in after[name].problem
            for name in bits.keys() - gone:
                assert loaded(after, name).tobytes() == bits[name]
            assert after.calls.keys() <= calls, "a call that nobody made"


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of_a_part_can_be_compacted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    content = bytearray(in_state(path, "index damaged"))
    (part,) = parts(path)
    lost = [found for found in records_of(part) if found.fields.kind == KINDS[kind]][2]
    missing(content, lost.start, lost.end)
    part.write_bytes(content)
    audit(path, repair=True)
    before = dict(Archive(path))
    told = [finding.problem for finding in audit(path).findings]
    stored = Stored("float64", (1,))
    rewrite(part, Condensing(lambda _: True, lambda *_: (stored, np.ones(1))))
    after = Archive(path)
    assert set(after) == set(before) and after.calls == Archive(path).calls
    for name, found in before.items():
        assert after[name].problem == found.problem
        assert after[name].kept == ("summary" if found.kept == "full" else found.kept)
    assert [finding.problem for finding in audit(path).findings] == told
    with h5py.File(part) as file:  # and other tools find nothing broken in it
        file.visititems(lambda name, value: None)


def test_a_link_to_a_lost_value_of_another_part_is_told(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with ArchiveWriter(path, part_nbytes=20_000) as sink:
        for number in range(12):
            put(sink, key(f"op{number}"), np.full(500, float(number)), number)
        link = record(key("last", "input.0"), np.full(500, 1.0), order=20)
        sink.put(replace(link, same_as=key("op1")), None)
    first, *_, last = parts(path)
    for part in (first, last):
        content, records = bytearray(part.read_bytes()), records_of(part)
        index = next(r for r in records if r.fields.kind == schema.INDEX)
        content[index.data_start] ^= 0xFF
        if part is first:
            value = [r for r in records if r.fields.kind == schema.VALUE][1]
            missing(content, value.start, value.end)
        part.write_bytes(content)
    for repair in (False, True):
        told = [finding.problem for finding in audit(path, repair=repair).findings]
        archive = Archive(path)
        assert key("op1") not in archive and any("was lost" in problem for problem in told)
        found = archive.get(key("last", "input.0"))
        assert found is None or (found.kept == "nothing" and "lost" in found.problem)
        for number in {*range(12)} - {1}:
            assert (loaded(archive, key(f"op{number}")) == number).all()
