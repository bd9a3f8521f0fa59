"""``python -m benchmarks.publicbugs [NAME...]``: assert that these bugs are real here, no tool."""

import sys
import tempfile
from pathlib import Path

from benchmarks.publicbugs.corpus import load, names
from benchmarks.publicbugs.reproducing import reproduce
from benchmarks.publicbugs.running import warm


def main(wanted: list[str]) -> int:
    warm()
    bad = 0
    for name in wanted or names():
        bug = load(name)
        with tempfile.TemporaryDirectory() as room:
            try:
                print(
                    f"{name}: real, {reproduce(bug, Path(room)).error:.3g} off. {bug.seen}",
                    flush=True,
                )
            except AssertionError as said:
                bad += 1
                print(f"{name}: NOT SHOWN. {said}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
