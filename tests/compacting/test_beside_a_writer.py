"""A reader beside a run that is written and compacted: all that was finished is there, and right.

``make fuzz`` reads beside a writer for an hour.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import Verdict
from dumpcmp.summary.packing import unpack
from tests.archive.steady import SIZES, name_of, numbers_of

SECONDS = float(os.environ.get("DUMPCMP_SECONDS", "2"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
PATIENCE = 10.0  # seconds until a step that is finished can be read, on a machine that is busy
MEMORY = 512 << 20  # bytes that the reader may grow by
REPLACED = "was sealed or compacted while it was being read"
SPAN = 200  # steps that are compared
SHARE = 10  # an audit, or a comparison, comes when it takes no more than one in so many seconds


@contextmanager
def begun(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL) as program:
        try:
            yield program
        finally:
            program.kill()


def check_value(archive: Archive, record: Record) -> None:
    """Assert that a value is what the writer wrote, or the Summary of that."""
    wanted = numbers_of(record.key.step, int(record.key.op.removeprefix("layers.")))
    value = archive.load(record)
    if record.kept is Kept.FULL:
        assert value.bits.tobytes() == wanted.tobytes()
        return
    assert record.kept is Kept.SUMMARY and record.stored is not None
    found = unpack(record.stored, value.numbers(), record.dtype, record.shape)
    assert found.digest == xxhash.xxh3_128(wanted.data).hexdigest()


class Reader:
    """Looks at a run that goes on, and counts what it has seen."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path, self.log = path, log
        self.chance = random.Random(SEED)
        self.num_looks = self.num_refused = self.num_values = self.num_wholes = 0
        self.next_whole = 0.0

    def finished(self) -> dict[int, float]:
        """The steps that were written, and when."""
        lines = self.log.read_text().splitlines(keepends=True)
        whole = (line.split() for line in lines if line.endswith("\n"))
        return {int(step): float(when) for step, when in whole}

    def look_on(self) -> None:
        """Look, unless a part takes its new form just then, which is told."""
        try:
            self.look()
        except ArchiveError as error:
            assert REPLACED in error.message, error
            self.num_refused += 1

    def look(self) -> None:
        """Open the run anew, and hold some steps against what was written: the last, and old ones.

        Sometimes all of it is audited, and its end held against itself.
        """
        before, finished = time.monotonic(), self.finished()
        late = {step for step, when in finished.items() if when < before - PATIENCE}
        drawn = self.chance.sample(sorted(finished), min(3, len(finished)))
        archive = Archive(self.path).select(steps=sorted({*drawn, *list(finished)[-2:]}))
        archive.checks_digests = True
        for record in archive.values():
            check_value(archive, record)
            self.num_values += 1
        for step in late.intersection(drawn):
            for number in range(len(SIZES)):
                assert name_of(step, number) in archive, f"step {step} is finished, and not there"
        assert [each for each in archive.problems if "still running" not in each] == []
        self.num_looks += 1
        if before >= self.next_whole:
            self.look_at_all()
            now = time.monotonic()
            self.next_whole = now + SHARE * (now - before)

    def look_at_all(self) -> None:
        """Nothing is wrong with it but that it goes on, and its last steps are as they are."""
        told = [flaw for flaw in audit(self.path).findings if flaw.stands]
        assert [flaw.problem for flaw in told if "still running" not in flaw.problem] == []
        last = list(self.finished())[-SPAN:]
        outcome = compare(self.path, self.path, tokens=last, replay="off")
        assert not any(row.verdict is Verdict.FAIL for row in outcome.rows)
        assert outcome.exit_code != 1
        self.num_wholes += 1


def grown_to() -> int:
    """The largest that this process has been, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.slow
def test_a_reader_beside_a_writer_and_a_compactor(tmp_path: Path) -> None:
    path, log = tmp_path / "d", tmp_path / "log"
    reader = Reader(path, log)
    with (
        begun("tests.archive.steady", str(path), str(log), str(SECONDS)) as writer,
        begun("dumpcmp", "compact", "--watch", str(path)) as compactor,
    ):
        while not (log.exists() and reader.finished()):
            assert writer.poll() is None
            time.sleep(0.01)
        while not reader.num_wholes:
            reader.look_on()
        memory = grown_to()
        while writer.poll() is None:
            reader.look_on()
        assert (writer.returncode, compactor.wait(timeout=600)) == (0, 0)
    num_steps = len(reader.finished())
    seen = f"{reader.num_looks} looks, {reader.num_refused} refused, {reader.num_values} values"
    print(f"{num_steps} steps; {seen}; {reader.num_wholes} audits;", end=" ")
    print(f"{(grown_to() - memory) >> 20} MB more")
    archive = Archive(path)
    assert archive.complete and len(archive) == num_steps * len(SIZES)
    for record in archive.values():
        check_value(archive, record)
    assert audit(path).sound and reader.num_looks > reader.num_refused
    assert grown_to() - memory < MEMORY
