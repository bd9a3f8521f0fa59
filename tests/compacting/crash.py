"""Kills compactors at random moments and looks at what they leave."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.rewrite import is_sealed, parts_of
from dumpcmp.compacting import compact
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept
from dumpcmp.summary.packing import unpack
from dumpcmp.summary.summary import digest_of
from tests.compacting.archives import write_archive

CHILD = """
import sys
from dumpcmp.compacting import compact
print("ready", flush=True)
compact(sys.argv[1])
"""


def kill_one(path: Path, seconds: float) -> bool:
    """Kill a compactor `seconds` after it began; False where it had ended by then."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    return child.wait() == -signal.SIGKILL


def digests(path: Path) -> dict[Key, str]:
    """The digest of every value's elements, whether they or their Summary are in the archive."""
    archive, found = Archive(path), {}
    for key, record in archive.items():
        if record.kept is Kept.SUMMARY:
            assert record.stored is not None
            numbers = archive.load(record).numbers()
            found[key] = unpack(record.stored, numbers, record.dtype, record.shape).digest
        else:
            found[key] = digest_of(archive.load(record))
            assert found[key] == record.digest
    assert archive.complete and not archive.problems
    return found


def trials(room: Path, count: int, seed: int = 0) -> tuple[int, int]:
    """Kill `count` compactors at work: how many were tried, and values then lost or wrong."""
    rng, killed, number, wrong = random.Random(seed), 0, 0, 0
    write_archive(room / "first", steps=3, shape=(64, 2000))
    measured = time.monotonic()
    compact(room / "first")
    duration = time.monotonic() - measured
    while killed < count:
        number += 1
        path = room / str(number)
        write_archive(path, steps=3, shape=(64, 2000), seed=number)
        expected = digests(path)
        killed += kill_one(path, rng.uniform(0, 1.2 * duration))
        wrong += sum(digests(path).get(key) != digest for key, digest in expected.items())
        compact(path)
        wrong += sum(digests(path).get(key) != digest for key, digest in expected.items())
        wrong += len(list(path.rglob(".draft-*")))
        assert len(list(filter(is_sealed, parts_of(path)))) == 3
    return number, wrong
