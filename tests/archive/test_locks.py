"""Whoever works on an archive knows of the others: writer, compactor, repair, overwriter."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive import paths
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.locks import alone, hold, is_held
from dumpcmp.archive.paths import RankDirectory, run_text
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.compacting import compact
from dumpcmp.nouns.errors import ArchiveError, CaptureWarning
from tests.archive.test_crash import kill
from tests.archive.values import key, loaded, put


def disown(path: Path) -> None:
    """Let run.json name a process that is not there, as in another namespace of processes."""
    for run in path.glob("*/run.json"):
        facts = json.loads(run.read_text())
        facts["writer"] |= {"pid": 2**22 + 1, "began": "1"}
        run.write_text(run_text(facts))


def test_a_repair_leaves_alone_what_is_being_written(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("before"), np.arange(8.0))
        disown(tmp_path / "d")
        found = audit(tmp_path / "d", repair=True)
        assert not any(flaw.repair for flaw in found.findings)
        put(sink, key("after"), np.arange(9.0))
    archive = Archive(tmp_path / "d")
    assert archive.complete and loaded(archive, key("after")).size == 9
    assert audit(tmp_path / "d").sound


def test_a_live_dump_is_not_overwritten(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        disown(tmp_path / "d")
        with pytest.raises(ArchiveError, match="still being written"):
            ArchiveWriter(tmp_path / "d", overwrite=True)
        put(sink, key(), np.arange(8.0))
    assert Archive(tmp_path / "d").complete
    with ArchiveWriter(tmp_path / "d", overwrite=True):
        pass
    assert len(Archive(tmp_path / "d")) == 0


@pytest.mark.parametrize("again", [False, True], ids=["removed", "and made again"])
def test_a_directory_that_vanishes_is_trouble(tmp_path: Path, again: bool) -> None:
    with warnings.catch_warnings(), ArchiveWriter(tmp_path / "d") as sink:
        warnings.simplefilter("ignore", CaptureWarning)
        put(sink, key("first"), np.arange(8.0))
        shutil.rmtree(tmp_path / "d")
        if again:
            put(sink, key("late", step=1), np.arange(8.0))
    assert "removed" in sink.problem or "No such file" in sink.problem


def test_one_repairs_or_compacts_at_a_time(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key(), np.arange(8.0))
    with alone(tmp_path / "d"), pytest.raises(ArchiveError, match="compacted or repaired"):
        audit(tmp_path / "d", repair=True)
    with alone(tmp_path / "d"), pytest.raises(ArchiveError, match="written or compacted"):
        ArchiveWriter(tmp_path / "d", overwrite=True)


def test_only_one_is_alone_however_many_come_and_go(tmp_path: Path) -> None:
    """Each removes the file by which it held the archive: nobody may hold the removed one."""
    inside, crowds, wrong = [], [], []  # type: ignore[var-annotated]

    def come_and_go() -> None:
        for _ in range(1_000):
            try:
                with alone(tmp_path):
                    inside.append(None)
                    time.sleep(0)
                    crowds.append(len(inside))
                    inside.pop()
            except ArchiveError:
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and crowds and max(crowds) == 1


def test_rings_that_nobody_needs_are_cleared_and_others_stay(tmp_path: Path) -> None:
    finished, _ = kill(tmp_path / "needed", "shared", 0.1)
    for name in ("gone", "late"):
        kill(tmp_path / name, "shared", 0.1)
    rings = {}
    for name in ("needed", "gone", "late"):
        facts = json.loads(next((tmp_path / name).glob("*/run.json")).read_text())
        rings[name] = paths.SHARED_MEMORY / facts["writer"]["ring"]
    shutil.copytree(tmp_path / "needed", tmp_path / "copy")
    shutil.rmtree(tmp_path / "gone")
    with suppress(FileNotFoundError):  # a capture of another test may have cleared it
        os.utime(rings["gone"], (0, 0))
    with ArchiveWriter(tmp_path / "other") as sink:
        put(sink, key(), np.arange(8.0))
        assert rings["needed"].exists() and not rings["gone"].exists()
        audit(tmp_path / "copy", repair=True)  # names a ring that is not its own
        assert rings["needed"].exists()
        (tmp_path / "needed").rename(tmp_path / "moved")
        assert audit(tmp_path / "moved", repair=True).exit_code == 0
    assert not rings["needed"].exists() and rings["late"].exists()
    shutil.rmtree(tmp_path / "late")
    with suppress(FileNotFoundError):
        os.utime(rings["late"], (0, 0))
    compact(tmp_path / "other")
    assert not rings["late"].exists()
    assert len(Archive(tmp_path / "moved")) >= 2 * len(finished)


def test_a_forked_child_does_not_keep_an_archive_busy(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from dumpcmp.archive.write.writer import ArchiveWriter\n"
        "begun = os.pipe()\n"
        "with ArchiveWriter(sys.argv[1]):\n"
        "    if not os.fork():\n"
        "        os.write(begun[1], b'.')\n"
        "        time.sleep(20)\n"
        "        os._exit(0)\n"
        "    os.read(begun[0], 1)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], check=False)
    assert "cut short" in Archive(tmp_path / "d").problems[0]


def test_ranks_that_overwrite_a_larger_run_do_not_stumble_over_each_other(tmp_path: Path) -> None:
    """Every new rank removes all of the old ones: whoever comes second finds nothing."""
    for turn in range(10):
        root = tmp_path / str(turn)
        for rank in range(8):
            old = RankDirectory(root, rank, 8)
            old.create(overwrite=False)
            for number in range(20):
                (old.path / f"{number}.txt").touch()
        with ThreadPoolExecutor(4) as ranks:
            new = [RankDirectory(root, rank, 4) for rank in range(4)]
            list(ranks.map(lambda one: one.create(overwrite=True), new))
        assert sorted(path.name for path in root.iterdir()) == [one.path.name for one in new]


def test_who_asks_is_in_nobodys_way(tmp_path: Path) -> None:
    """A new writer beside many that ask whether it is there: none of them may stop it."""
    stop = threading.Event()
    asking = [threading.Thread(target=ask, args=(tmp_path / "lock", stop)) for _ in range(4)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(2_000):
            os.close(hold(tmp_path / "lock"))
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    held = hold(tmp_path / "lock")
    assert is_held(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        hold(tmp_path / "lock")
    os.close(held)
    assert is_held(tmp_path / "lock") is False


def ask(path: Path, stop: threading.Event) -> None:
    while not stop.is_set():
        is_held(path)
