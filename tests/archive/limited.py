"""A program whose files may not grow beyond a limit: its capture stops, and it goes on.

Run as ``python -m tests.archive.limited ARCHIVE NBYTES always|error``; prints how many records were
put before the warning came, and how many warnings there were.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from typing import Literal

import numpy as np

from dumpcmp.archive.write.writer import ArchiveWriter
from tests.archive.values import key, put


def main(path: str, nbytes: int, action: Literal["always", "error"]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        with ArchiveWriter(path, memory="private") as sink:
            number = 0
            while sink.active and number < 10_000:
                put(sink, key(f"op{number}"), np.full(1024, float(number)), number)
                number += 1
                time.sleep(0.0005)
            for late in range(100):
                put(sink, key(f"late{late}"), np.zeros(8))
    said = str(caught[0].message).splitlines()[0] if caught else ""
    print(number, len(caught), said)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
