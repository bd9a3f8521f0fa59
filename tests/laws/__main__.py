"""Programs at random, and what became of them: ``python -m tests.laws COUNT [SEED [SECONDS]]``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.laws.trials import Findings, hold


def main(count: int, first: int = 0, seconds: int = 1_000_000) -> int:
    torch.set_num_threads(1)
    total, deadline = Findings(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as room:
        for found in hold(range(first, first + count), Path(room)):
            for violation in found.violations:
                print(violation, flush=True)
            for unknown in found.unknown:
                print("open,", unknown, flush=True)
            total += found
            if time.monotonic() > deadline:
                break
    print(total)
    return int(bool(total.violations))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
