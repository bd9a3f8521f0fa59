"""Archives made to harm are read by workers as they are here, and nothing outside of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import h5py
import pytest

import dumpcmp
from dumpcmp.nouns.row import Verdict
from tests.archive.test_hostile import SECRET, external, linked, rewritten, soft, virtual, written
from tests.archive.values import parts
from tests.engines.runs import told


@pytest.fixture(scope="module")
def worker() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        yield pool


@pytest.mark.parametrize("lead_out", [external, virtual, linked, soft])
def test_a_worker_reads_nothing_outside_of_an_archive(
    worker: Executor, tmp_path: Path, lead_out: Callable[[h5py.File, Path], None]
) -> None:
    with h5py.File(tmp_path / "secret", "w") as file:
        file["secret"] = SECRET
    for name in ("golden", "target"):
        path = written(tmp_path / name)
        rewritten(parts(path)[0], lambda file: lead_out(file, tmp_path / "secret"))
    runs = tmp_path / "golden", tmp_path / "target"
    assert _answer(runs, worker) == _answer(runs, None)
    assert dumpcmp.audit(runs[0], executor=worker) == dumpcmp.audit(runs[0])


def _answer(runs: tuple[Path, Path], executor: Executor | None) -> tuple[int, list[str]]:
    """The exit code and all that is told; an error is trouble, and so is a value unread."""
    try:
        outcome = dumpcmp.compare(*runs, executor=executor)
    except dumpcmp.ArchiveError as error:
        assert "leads out of the archive" in error.message
        return 2, [error.message]
    (row,) = (row for row in outcome.rows if row.key.slot == "output.1")
    assert row.verdict is Verdict.ERROR and outcome.exit_code == 2
    return outcome.exit_code, told(outcome)
