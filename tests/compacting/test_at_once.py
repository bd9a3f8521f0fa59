"""Dump, compact, audit, repair, overwrite, compare and read one path at once: nothing is wrong.

``DUMPCMP_SECONDS=60 pytest tests/compacting/test_at_once.py`` is the long version.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.compacting import compact
from dumpcmp.comparing import compare
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.row import Verdict
from tests.archive.values import key, put

SECONDS = float(os.environ.get("DUMPCMP_SECONDS", "2"))
PER_STEP, SIZE = 40, 3000  # every other step is of small values, whose parts are laid densely


def read(path: Path) -> None:
    """Assert that whatever can be read is right."""
    archive = Archive(path)
    archive.checks_digests = True
    for name in archive:
        record = archive[name]
        if record.kept is Kept.FULL:
            value = archive.load(record)
            assert (value.bits == name.step * PER_STEP + int(name.op.removeprefix("op"))).all()


def compared(path: Path) -> None:
    """Whatever of a run can be held against itself is the same, and the run not called whole."""
    outcome = compare(path, path, replay="off")
    assert not any(row.verdict is Verdict.FAIL for row in outcome.rows), outcome.first_divergence
    assert outcome.exit_code != 1


def overwrite(path: Path) -> None:
    ArchiveWriter(path, overwrite=True).close()
    raise AssertionError("a live dump was overwritten")


def repeated(act: Callable[[Path], object], path: Path, end: float, wrong: list[object]) -> None:
    while time.monotonic() < end:
        try:
            act(path)
        except DumpcmpError:
            time.sleep(0.005)
        except BaseException as error:
            wrong.append((act, error))
            return


def test_all_at_once(tmp_path: Path) -> None:
    path, wrong, end = tmp_path / "d", [], time.monotonic() + SECONDS  # type: ignore[var-annotated]
    acts = (read, compact, audit, lambda path: audit(path, repair=True), overwrite, compared)
    with ArchiveWriter(path) as sink:
        threads = [threading.Thread(target=repeated, args=(act, path, end, wrong)) for act in acts]
        for thread in threads:
            thread.start()
        step = 0
        while time.monotonic() < end:
            for number in range(PER_STEP):
                numbers = np.full(3 if step % 2 else SIZE, float(step * PER_STEP + number))
                put(sink, key(f"op{number}", step=step), numbers, number)
            sink.finish_step("Model", step)
            step += 1
            time.sleep(0.01)
        for thread in threads:
            thread.join()
    assert wrong == []
    archive = Archive(path)
    assert archive.complete and len(archive) == PER_STEP * step
    assert audit(path).sound
    read(path)
