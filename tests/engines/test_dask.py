"""Dask's scheduler with two worker processes: the same is found, though one dies and S3 fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dask")
pytest.importorskip("distributed")

import dask
import distributed

import dumpcmp
from dumpcmp.engines.on_dask import of_client
from tests.archive.bucket import NAME, Bucket, Trouble, bucket_served
from tests.engines.dying import STAGES, WHEN, check_stage
from tests.engines.runs import MARK, die, dump_two, told


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that says that a worker was killed."""
    return tmp_path_factory.mktemp("killed") / "mark"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket that this process and the workers find."""
    with pytest.MonkeyPatch.context() as patch, bucket_served() as (bucket, variables):
        for name, said in variables.items():
            patch.setenv(name, said)
        yield bucket


@pytest.fixture(scope="module")
def cluster(mark: Path, bucket: Bucket) -> Iterator[Any]:
    quick = {
        "distributed.scheduler.allowed-failures": 1,
        # So long after a worker died the cluster looks whether another has its name. Where that one
        # has just been killed as well, it takes it for lost, and ends what replaces it.
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    options: dict[str, Any] = {
        "env": {MARK: str(mark)},  # and all variables of this process
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": 50,
    }
    with dask.config.set(quick), distributed.LocalCluster(2, **options) as started:
        yield started


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dump_two(tmp_path_factory.mktemp("runs"))


def test_workers_find_what_one_process_finds(cluster: Any, runs: tuple[Path, Path]) -> None:
    alone = dumpcmp.compare(*runs, replay="all")
    with distributed.Client(cluster) as client:
        by_client = dumpcmp.compare(*runs, replay="all", executor=client)
        assert client.status == "running"  # it is the user's
    named = f"dask:{cluster.scheduler_address}"
    assert (
        told(by_client) == told(alone) == told(dumpcmp.compare(*runs, replay="all", executor=named))
    )
    assert dumpcmp.audit(runs[0], executor=named) == dumpcmp.audit(runs[0])


def test_workers_import_as_one_process_does(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for step in range(4):
        values: dict[str, Any] = {f"layers.{i}": np.full((50, 3), i + step) for i in range(5)}
        np.savez(tmp_path / "d" / f"step{step}.npz", **values)
    dumpcmp.import_dump(tmp_path / "d", tmp_path / "here")
    named = f"dask:{cluster.scheduler_address}"
    done = dumpcmp.import_dump(tmp_path / "d", tmp_path / "there", executor=named)
    assert (done.num_values, done.num_steps) == (20, 4)
    assert dumpcmp.audit(tmp_path / "there").sound
    assert told(dumpcmp.compare(tmp_path / "here", tmp_path / "there"))
    digests = [
        {str(key): record.digest for key, record in dumpcmp.Archive(tmp_path / name).items()}
        for name in ("here", "there")
    ]
    assert digests[0] == digests[1]


def test_workers_compact_as_one_process_does(
    cluster: Any, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("here", "there"):
        shutil.copytree(runs[1], tmp_path / name)
    here = dumpcmp.compact(tmp_path / "here", min_max_only=True)
    named = f"dask:{cluster.scheduler_address}"
    there = dumpcmp.compact(tmp_path / "there", min_max_only=True, executor=named)
    assert (here.total.num_parts, here.total.num_values) == (3, there.total.num_values)
    assert told(dumpcmp.compare(runs[0], tmp_path / "here")) == told(
        dumpcmp.compare(runs[0], tmp_path / "there", executor=named)
    )


def test_a_killed_worker_and_a_store_that_fails_at_times_change_nothing(
    cluster: Any, bucket: Bucket, runs: tuple[Path, Path], mark: Path
) -> None:
    system = pytest.importorskip("s3fs").S3FileSystem
    system.clear_instance_cache()
    urls = [f"s3://{NAME}/{run.name}" for run in runs]
    for run, url in zip(runs, urls, strict=True):
        system().put(f"{run}/", url, recursive=True)
    metric = "tests.engines.runs:deadly"
    alone = dumpcmp.compare(*runs, metrics=metric)
    assert not mark.exists()
    named = f"dask:{cluster.scheduler_address}"
    with bucket.troubled(every=10, seconds=0.005):
        found = dumpcmp.compare(*urls, metrics=metric, executor=named)
    assert mark.exists() and bucket.num_troubled >= len(Trouble)
    assert told(found) == told(alone) and found.exit_code == 1
    assert [row.own for row in found.rows] == [row.own for row in alone.rows]


@pytest.mark.long
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_dies_at_any_stage_changes_nothing(
    cluster: Any, stage: str, when: str, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    with distributed.Client(cluster) as client:
        check_stage(stage, when, client.get_executor(pure=False), runs, tmp_path)


def test_a_task_that_ends_every_worker_is_trouble(cluster: Any) -> None:
    with (
        distributed.Client(cluster) as client,
        of_client(client, ()) as workers,
        pytest.raises(dumpcmp.EngineError, match="one task ended 2 workers"),
    ):
        workers.submit(die, None).result()


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dumpcmp.engines.on_dask._WAIT_SECONDS", 1)
    with pytest.raises(dumpcmp.EngineError, match="no Dask scheduler answers at tcp://127"):
        dumpcmp.audit("sample_dumps/golden", executor="dask:tcp://127.0.0.1:9")
