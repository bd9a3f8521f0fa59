"""Small values that ops are run again on are kept at hand, each op in memory of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dumpcmp.align.pairing import pair_values
from dumpcmp.comparing.both_sides import let_go, side_of
from dumpcmp.comparing.laying import Task, lay_out
from dumpcmp.comparing.side import archive_at, open_side
from dumpcmp.comparing.ways import Ways
from dumpcmp.nouns.row import USUAL
from dumpcmp.nouns.selection import Tap

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


def tasks() -> list[Task]:
    ours, theirs = (open_side(SAMPLES / name, Tap()) for name in ("golden", "target"))
    pairs = pair_values(ours.listing, theirs.listing)
    ways = Ways.of(ours.listing, theirs.listing)
    found = lay_out(pairs, ours, theirs, None, ways, USUAL).values()
    return [task for task in found if isinstance(task, Task)]


def test_a_value_that_is_kept_is_that_of_the_archive() -> None:
    let_go()
    for task in tasks()[:100]:
        for is_target, shares in ((False, task.golden), (True, task.target)):
            read = archive_at(shares.path).load(shares.first)
            kept = side_of(task, is_target)
            assert np.array_equal(kept.bits, read.bits)
            assert side_of(task, is_target) is kept
    let_go()
    assert side_of(task, True) is not kept
