"""Opens files that hold programs: only plain files, and none larger than it may be."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from dumpcmp.nouns.errors import ProgramFileError


def open_plain(path: Path) -> BinaryIO:
    """Open the regular file at `path`; a FIFO or a device, which could block, is refused."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProgramFileError(f"there is no file {path}") from None
    except OSError as error:
        raise ProgramFileError(f"{path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ProgramFileError(f"{path} is not a regular file")
    return os.fdopen(opened, "rb")


def read_plain(path: Path, limit: int) -> bytes:
    """The bytes of the regular file at `path`, unless they are more than `limit`."""
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ProgramFileError(f"{path} is larger than {limit >> 20} MiB")
    return data
