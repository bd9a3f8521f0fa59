"""``python -m benchmarks.publicbugs [NAME...]``: assert that these bugs are real here, no tool."""

import sys
import tempfile
from pathlib import Path

from benchmarks.publicbugs.corpus import load, names
from benchmarks.publicbugs.reproducing import reproduce


def main(wanted: list[str]) -> int:
    bad = 0
    for name in wanted or names():
        bug = load(name)
        with tempfile.TemporaryDirectory() as room:
            try:
                seen = reproduce(bug, Path(room))
                print(f"{name}: real, {seen.error:.3g} off. {bug.seen}", flush=True)
            except AssertionError as said:
                bad += 1
                print(f"{name}: NOT SHOWN. {said}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
