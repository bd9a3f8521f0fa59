"""Writers that are killed and files that are broken: what dumpcmp makes of them, and others."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.storages import Floats, Storage, storages
from benchmarks.tables import Table
from tests.readers.guided import Guided

PROMISE = 0.1  # seconds before a kill: what was finished by then must be there
PATIENCE = 60.0  # seconds for one reading, on a machine that is busy
NUM_ARRAYS = 6  # of what is broken


class End(StrEnum):
    """How one reading ended."""

    RIGHT = "all right"
    OWN = "refused by its own error"
    OTHER = "another error"
    LOST = "values lost, untold"
    WRONG = "wrong numbers, untold"
    HANGS = "crashed or hung"


def array(number: int) -> Floats:
    """What is kept under a number."""
    return np.full(10 + 97 * (number % 40), float(number + 1))


def read_in(storage: Storage, path: Path, wanted: set[int]) -> End:
    """Read, and hold it against what was written; `wanted` must be there."""
    try:
        found = storage.read(path)
    except storage.errors:
        return End.OWN
    except Exception:
        return End.OTHER
    for number, numbers in found.items():
        if numbers.shape != array(number).shape or (numbers != array(number)).any():
            return End.WRONG
    return End.RIGHT if wanted <= found.keys() else End.LOST


class Reader:
    """A process that reads, and is replaced where it crashes or hangs."""

    def __init__(self, storage: Storage, path: Path, wanted: set[int]) -> None:
        self.storage, self.path, self.wanted = storage, path, wanted
        self.child = 0

    def end(self) -> End:
        """Read what is at the path now."""
        if not self.child:
            self.asked, theirs = Pipe()
            self.child = forked(lambda: self._serve(theirs))
            theirs.close()
        try:
            self.asked.send(True)
            if self.asked.poll(PATIENCE):
                return End(self.asked.recv())
        except (EOFError, OSError):
            pass
        self.close()
        return End.HANGS

    def close(self) -> None:
        if self.child:
            self.asked.close()
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0

    def _serve(self, asked: Connection) -> None:
        warnings.simplefilter("ignore")
        self.asked.close()
        while asked.recv():
            asked.send(str(read_in(self.storage, self.path, self.wanted)))


def forked(work: Callable[[], object]) -> int:
    """A child of this process that does `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def killed(storage: Storage, room: Path, chance: random.Random) -> End:
    """Kill a writer at some moment, and read what it has left."""
    path, log = room / "killed", room / "log"
    log.touch()
    writer = forked(lambda: _write_for_ever(storage, path, log))
    while log.stat().st_size < 200:
        assert os.waitpid(writer, os.WNOHANG) == (0, 0), "the writer ended by itself"
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.4))
    deadline = time.monotonic() - PROMISE
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    lines = (line.split() for line in log.read_text().splitlines(True) if line.endswith("\n"))
    reader = Reader(storage, path, {int(n) for n, when in lines if float(when) < deadline})
    end = reader.end()
    reader.close()
    return end


def _write_for_ever(storage: Storage, path: Path, log: Path) -> None:
    with log.open("wb", buffering=0) as finished:

        def done(number: int) -> None:
            finished.write(f"{number} {time.monotonic():.6f}\n".encode())

        storage.write(path, ((number, array(number)) for number in itertools.count()), done)


def kills(storage: Storage, room: Path, count: int) -> Counter[End]:
    """`count` writers are killed."""
    chance, ends = random.Random(0), Counter[End]()
    for number in range(count):
        (room / str(number)).mkdir()
        ends[killed(storage, room / str(number), chance)] += 1
        shutil.rmtree(room / str(number))
    return ends


def breaks(storage: Storage, room: Path, count: int) -> Counter[End]:
    """One of the files of a few arrays is broken, `count` times."""
    path, chance, ends = room / "broken", random.Random(0), Counter[End]()
    os.waitpid(forked(lambda: _write_some(storage, path)), 0)
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    whole = {file: file.read_bytes() for file in sorted(files) if file.stat().st_size}
    changes = {file: Guided(len, [content], chance) for file, content in whole.items()}
    reader = Reader(storage, path, set(range(NUM_ARRAYS)))
    assert reader.end() is End.RIGHT
    while ends.total() < count:
        file = chance.choice(list(whole))
        content = changes[file].changed()
        if content != whole[file]:
            file.write_bytes(content)
            ends[reader.end()] += 1
            file.write_bytes(whole[file])
    reader.close()
    return ends


def _write_some(storage: Storage, path: Path) -> None:
    storage.write(path, ((n, array(n)) for n in range(NUM_ARRAYS)), lambda _: None)


def row(attack: str, storage: Storage, ends: Counter[End]) -> list[str]:
    survived = ends[End.RIGHT] + ends[End.OWN] * (attack == "broken")
    cells = [f"{ends[end]:,}" if ends[end] else "" for end in End]
    return [attack, storage.name, f"{ends.total():,}", f"{survived:,}", *cells]


def table() -> Table:
    """Kills and broken files, of dumpcmp and of others."""
    scale = float(os.environ.get("DUMPCMP_BENCH_SCALE", "1"))
    rows = []
    for attack, attacked, count in (("killed", kills, 100), ("broken", breaks, 2_000)):
        for storage in storages():
            with tempfile.TemporaryDirectory() as folder:
                ends = attacked(storage, Path(folder), max(1, round(count * scale)))
            rows.append(row(attack, storage, ends))
    return Table(
        "reliability",
        ("attack", "storage", "tries", "survived", *End),
        rows,
        "Killed: a process that writes array after array ends by SIGKILL. Survived is one after "
        f"which all opens, and all is there that was finished {1000 * PROMISE:.0f} ms before. "
        "Broken: one of the files of six arrays is changed at random. Survived is a right answer "
        "or an error of the storage's own; SafetensorError, sqlite3.Error, of h5py OSError, "
        "KeyError, RuntimeError and ValueError, of zarr its own, FileNotFoundError and "
        "ValueError. h5py and zarr write checksums.",
    )
