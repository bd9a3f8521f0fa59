"""``python -m benchmarks.scale_stages GOLDEN TARGET``: what the stages of a comparison cost."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch  # noqa: F401 - not to be counted

from dumpcmp.align.pairing import pair_values
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.comparing.side import open_side
from dumpcmp.execute import rarely_collecting
from dumpcmp.nouns.selection import make_tap
from dumpcmp.report.formats import FORMS

found: dict[str, dict[str, float]] = {}


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Note what the block took."""
    began = time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found[name] = {"seconds": time.process_time() - began, "peak": peak}


def opened(path: Path) -> None:
    """Read the indexes of the first step of a run, on all ranks."""
    archive = Archive(path)
    for model in archive.models:
        list(archive.keys_of(model, archive.steps(model)[0]))
    assert archive.complete


def main(golden: Path, target: Path) -> None:
    with stage("open"), rarely_collecting():
        opened(golden)
        opened(target)
    with stage("pair"), rarely_collecting():
        ours, theirs = (open_side(path, make_tap()).listing for path in (golden, target))
        pair_values(ours, theirs)
    del ours, theirs
    with stage("compare"), rarely_collecting():
        outcome = compare(golden, target)
    assert outcome.failures
    with tempfile.TemporaryDirectory() as folder, stage("report"), rarely_collecting():
        FORMS["csv"].write(outcome, Path(folder) / "report.csv")
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
