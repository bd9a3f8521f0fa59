"""Programs at random, and what became of them: ``python -m tests.laws COUNT [FIRST_SEED]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from tests.laws.trials import Findings, hold


def main(count: int, first: int = 0) -> int:
    torch.set_num_threads(1)
    total = Findings()
    with tempfile.TemporaryDirectory() as room:
        for found in hold(range(first, first + count), Path(room)):
            for violation in found.violations:
                print(violation, flush=True)
            for unknown in found.unknown:
                print("open,", unknown, flush=True)
            total += found
    print(total)
    return int(bool(total.violations))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
