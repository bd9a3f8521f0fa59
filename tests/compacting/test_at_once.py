"""Dump, compact, audit, repair, overwrite and read one path, all at once: nothing is ever wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.compacting import compact
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Kept
from tests.archive.values import key, put

SECONDS, PER_STEP, SIZE = 2.0, 6, 3000


def read(path: Path) -> None:
    """Assert that whatever can be read is right."""
    archive = Archive(path)
    archive.checks_digests = True
    for name in archive:
        record = archive[name]
        if record.kept is Kept.FULL:
            value = archive.load(record)
            assert (value.bits == name.step * PER_STEP + int(name.op.removeprefix("op"))).all()


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
    acts = (read, compact, audit, lambda path: audit(path, repair=True), overwrite)
    with ArchiveWriter(path) as sink:
        threads = [threading.Thread(target=repeated, args=(act, path, end, wrong)) for act in acts]
        for thread in threads:
            thread.start()
        step = 0
        while time.monotonic() < end:
            for number in range(PER_STEP):
                numbers = np.full(SIZE, float(step * PER_STEP + number))
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
