"""A dump into a store: it is written here, and a process beside it uploads what is finished."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dumpcmp.archive.copies import SPOOL
from dumpcmp.archive.paths import file_name
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.archive.upload import Uploaded, check_free, upload
from dumpcmp.nouns.errors import ArchiveError, DumpcmpError

USUAL_SPOOL = "dumpcmp-spool"
_OF_THIS_PROCESS = "memory"  # a store that no other process sees


@dataclass(frozen=True, slots=True)
class Spool:
    """Where a dump is written, and, if that is not where it shall lie, the URL where."""

    path: Path
    url: RemotePath | None = None
    rank: int = 0
    limit: int | None = None  # bytes above which parts that are in the store are removed here

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Have parts uploaded while the block runs, and the rest when it has ended."""
        if self.url is None:
            yield
        elif self.url.parts[0] == f"{_OF_THIS_PROCESS}:":
            yield
            self._check(upload(self.path, self.url, rank=self.rank, spool_limit=self.limit))
        else:
            yield from self._beside(str(self.url))

    def _beside(self, url: str) -> Iterator[None]:
        child = subprocess.Popen(
            self._command(url), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        owner = os.getpid()
        try:
            yield
        except KeyboardInterrupt:
            child.terminate()
            raise
        except BaseException:  # the program's own error is the one to tell
            if os.getpid() == owner:  # no child that the program forked waits for it
                child.communicate()
            raise
        if os.getpid() == owner:
            said = child.communicate()[1]
            if child.returncode:
                raise self._failed(said.rpartition("dumpcmp: ")[2].strip().partition("\n")[0])

    def _command(self, url: str) -> list[str]:
        words = [sys.executable, "-m", "dumpcmp", "upload", str(self.path), url, "--follow"]
        words += ["--rank", str(self.rank)]
        return words if self.limit is None else [*words, "--spool-limit", str(self.limit)]

    def _check(self, done: Uploaded) -> None:
        if not done.is_whole:
            raise self._failed("; ".join(done.left))

    def _failed(self, why: str) -> DumpcmpError:
        return ArchiveError(
            f"what was dumped is in {self.path}, and not all of it in {self.url}: {why}",
            hint=f"go on with it: dumpcmp upload {self.path} {self.url}",
        )


def spooled(
    path: str | os.PathLike[str], rank: int, world_size: int, *, overwrite: bool, limit: int | None
) -> Spool:
    """Where to write what shall lie at `path`; ArchiveError where a store cannot take it."""
    url = place(path)
    if not isinstance(url, RemotePath):
        return Spool(url)
    url.store.check_writable()
    check_free(url, f"worldsize{world_size}_global_rank{rank}", overwrite=overwrite)
    room = Path(os.environ.get(SPOOL) or USUAL_SPOOL).absolute()
    return Spool(room / file_name(str(url)), url, rank, limit)
