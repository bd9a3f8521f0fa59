"""A part whose bytes were changed opens or gives an ArchiveError: nothing else, and not slowly.

``DUMPCMP_MUTANTS=2000 pytest tests/archive/test_fuzz.py`` is the long version.
"""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.repair.integrity import audit
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Call, Record
from tests.archive.values import SMALL_NUMBERS, Dense, key, parts, record

MUTANTS = int(os.environ.get("DUMPCMP_MUTANTS", "300"))
LONGEST = 5.0  # seconds of computing for one mutant
MEMORY = 1 << 30


def sample(path: Path, *, sealed: bool) -> bytes:
    """A part with some of everything, small, so that a change hits something that matters."""
    sink = ArchiveWriter(path)
    for order, (name, bits) in enumerate(SMALL_NUMBERS.items()):
        op = f"layers.{order}/{name}"
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


@pytest.mark.parametrize("sealed", [True, False])
def test_a_mutant_opens_or_gives_an_archive_error(tmp_path: Path, sealed: bool) -> None:
    content = sample(tmp_path / "d", sealed=sealed)
    (part,) = parts(tmp_path / "d")
    chance = random.Random(2 + sealed)
    outcomes = {"opened": 0, "refused": 0}
    before = peak_nbytes()
    for _ in range(MUTANTS // 2):
        part.write_bytes(mutated(content, chance))
        began = time.process_time()
        try:
            read_everything(tmp_path / "d")
            outcomes["opened"] += 1
        except ArchiveError as error:
            assert str(part) in str(error)
            outcomes["refused"] += 1
        assert time.process_time() - began < LONGEST
    assert outcomes["opened"] and sum(outcomes.values()) == MUTANTS // 2
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
