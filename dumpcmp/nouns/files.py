"""The one way in which a file is replaced: whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft to write; it takes `path`'s place whole, and only if the block succeeds."""
    with TemporaryDirectory(prefix=".draft-", dir=path.parent) as room:
        draft = Path(room, path.name)
        yield draft
        draft.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Write a text so that a reader sees all of it, or what was there before."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="surrogatepass")
