"""The law of crashes: a compactor killed at any moment loses nothing."""

import os
from pathlib import Path

from tests.compacting.crash import trials

COUNT = int(os.environ.get("DUMPCMP_CRASH_TRIALS", "3"))


def test_a_killed_compactor_leaves_every_part_full_or_compacted(tmp_path: Path) -> None:
    tried, wrong = trials(tmp_path, COUNT)
    assert tried >= COUNT
    assert wrong == 0
