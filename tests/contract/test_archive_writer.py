"""The archive's writer keeps the contract of a Sink."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record, Sink
from tests.contract.sinks import SinkContract


class TestArchiveWriter(SinkContract):
    def opened(self, path: Path) -> AbstractContextManager[Sink]:
        return ArchiveWriter(path)

    def received(self, path: Path) -> dict[Key, Record]:
        return dict(Archive(path))

    def elements(self, path: Path, key: Key) -> NDArray[np.generic]:
        archive = Archive(path)
        return archive.load(archive[key]).bits


class TestPrivateMemory(TestArchiveWriter):
    """The same, where shared memory is not to be had and the ring is small."""

    def opened(self, path: Path) -> AbstractContextManager[Sink]:
        return ArchiveWriter(path, memory="private", ring_nbytes=1 << 20)
