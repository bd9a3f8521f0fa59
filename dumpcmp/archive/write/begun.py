"""What run.json says of a rank that has begun to write."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from dumpcmp.archive.paths import RankDirectory, now, process_start
from dumpcmp.archive.schema import SCHEMA_VERSION


def opening_facts(
    directory: RankDirectory, run: Mapping[str, Any], ring: str | None = None
) -> dict[str, Any]:
    """The facts of a rank of which nothing is there yet; `ring` is the name of its ring's file."""
    pid = os.getpid()
    return {
        "schema": SCHEMA_VERSION,
        "world_size": directory.world_size,
        "rank": directory.rank,
        "started": now(),
        "ended": None,
        "complete": False,
        "problem": "",
        "num_records": 0,
        "nbytes": 0,
        "num_shared": 0,
        "nbytes_shared": 0,
        "manifest": "",
        "writer": {
            "host": socket.gethostname(),
            "pid": pid,
            "began": process_start(pid),
            "ring": ring,
        },
        "run": run,
    }
