"""``python -m benchmarks.scale_stages GOLDEN TARGET [STAGE,...]``: what a comparison costs.

Each of its stages is told in a line of JSON as soon as it has ended.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell what the block took."""
    began = time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.process_time() - began
    print(json.dumps({"stage": name, "seconds": seconds, "peak": peak}), flush=True)


def opened(path: Path) -> None:
    """Read the indexes of the first step of a run, on all ranks."""
    archive = Archive(path)
    for model in archive.models:
        list(archive.keys_of(model, archive.steps(model)[0]))
    assert archive.complete


def opened_both(golden: Path, target: Path) -> None:
    opened(golden)
    opened(target)


def paired(golden: Path, target: Path) -> None:
    """List and pair all steps, as a comparison does that is one span."""
    ours, theirs = (open_side(path, make_tap()).listing for path in (golden, target))
    pair_values(ours, theirs)


def main(golden: Path, target: Path, stages: Sequence[str]) -> None:
    for name, work in (("open", opened_both), ("pair", paired)):
        if name in stages:
            with stage(name), rarely_collecting():
                work(golden, target)
    if "compare" not in stages:
        return
    with stage("compare"), rarely_collecting():
        outcome = compare(golden, target)
    assert outcome.failures
    with tempfile.TemporaryDirectory() as folder, stage("report"), rarely_collecting():
        FORMS["csv"].write(outcome, Path(folder) / "report.csv")


if __name__ == "__main__":
    named = sys.argv[3].split(",") if len(sys.argv) > 3 else ["open", "pair", "compare", "report"]
    main(Path(sys.argv[1]), Path(sys.argv[2]), named)
