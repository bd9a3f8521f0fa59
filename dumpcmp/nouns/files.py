"""The one way in which a file is replaced: whole, or not at all; and one that reads all asked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft to write; it takes `path`'s place whole, and only if the block succeeds."""
    with named(path), TemporaryDirectory(prefix=".draft-", dir=path.parent) as room:
        draft = Path(room, path.name)
        yield draft
        draft.replace(path)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let errors of the system name `path`, and no draft of it or nothing, as a full disk does."""
    try:
        yield
    except OSError as error:
        if error.filename is None or ".draft-" in str(error.filename):
            error.filename, error.filename2 = str(path), None
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text so that a reader sees all of it, or what was there before."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="surrogatepass")


def read_at(descriptor: int, nbytes: int, place: int) -> bytes:
    """The `nbytes` at `place`, fewer only where the file ends: one read may give a part of them."""
    content = os.pread(descriptor, nbytes, place)
    while 0 < len(content) < nbytes:
        more = os.pread(descriptor, nbytes - len(content), place + len(content))
        if not more:
            break
        content += more
    return content
