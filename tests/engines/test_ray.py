"""Ray started here, or at RAY_ADDRESS: the same is found, also where a worker is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dumpcmp
from tests.engines.dying import STAGES, WHEN, check_stage
from tests.engines.runs import MARK, die, dump_two, told

ray = pytest.importorskip("ray")

# Each worker that is lost is followed by one that loads torch anew. Ray lets workers wait for all
# others of the machine, by a niceness of 15; on a busy one that took minutes for each test.
HERE: dict[str, Any] = {
    "num_cpus": 2,
    "include_dashboard": False,
    "_system_config": {"worker_niceness": 0},
}


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed") / "mark"


@pytest.fixture(scope="module")
def cluster(mark: Path) -> Iterator[None]:
    env = {"env_vars": {MARK: str(mark)}}
    here = {} if "RAY_ADDRESS" in os.environ else HERE
    ray.init(log_to_driver=False, runtime_env=env, **here)
    yield
    ray.shutdown()


def test_workers_find_what_one_process_finds_though_one_is_killed(
    cluster: None, mark: Path, tmp_path: Path
) -> None:
    runs = dump_two(tmp_path)
    metric = "tests.engines.runs:deadly"
    alone = dumpcmp.compare(*runs, metrics=metric, replay="all")
    found = dumpcmp.compare(*runs, metrics=metric, replay="all", executor="ray")
    assert mark.exists() and told(found) == told(alone)
    assert dumpcmp.audit(runs[0], executor="ray") == dumpcmp.audit(runs[0])
    assert ray.is_initialized()  # it is the user's


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dump_two(tmp_path_factory.mktemp("runs"))


@pytest.mark.long
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_dies_at_any_stage_changes_nothing(
    cluster: None, stage: str, when: str, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    from dumpcmp.engines.on_ray import RayExecutor

    check_stage(stage, when, RayExecutor(), runs, tmp_path)


def test_an_error_of_a_worker_is_told_as_it_is_and_a_deadly_task_is_trouble(cluster: None) -> None:
    from dumpcmp.engines.on_ray import opened

    with (
        opened("", (Path("/nowhere"),)) as workers,
        pytest.raises(dumpcmp.EngineError, match="does not see /nowhere"),
    ):
        workers.submit(abs, -1).result()
    with (
        opened("", ()) as workers,
        pytest.raises(dumpcmp.EngineError, match="one task ended 4 workers"),
    ):
        workers.submit(die, None).result()
