"""How the tests share the machine: which of them run on one worker, and on how many threads."""

import os
from pathlib import Path

import pytest

from tests.taps.distributed.launching import launched

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core; what it starts inherits this
    os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent

# Folders and files whose tests look at the same runs, which are made once for each worker.
TOGETHER = {
    "taps/inductor": "inductor",
    "taps/distributed": "distributed",
    "compacting/test_ranks.py": "distributed",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test file a worker; files that share runs share one."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        group = next((name for start, name in TOGETHER.items() if path.startswith(start)), path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole models of the partitioned runs, on one rank: ``golden-NAME``."""
    path = tmp_path_factory.mktemp("golden")
    launched(1, "tests.taps.distributed.programs.campaign", str(path), "goldens")
    return path
