"""Engines by name: what a name means, what is told where it means nothing, and any Executor."""

from __future__ import annotations

import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.engines import elsewhere
from dumpcmp.engines.elsewhere import Elsewhere, done_there
from dumpcmp.engines.engine import Engine, workers_of
from dumpcmp.execute import SerialExecutor, in_batches, num_workers
from tests.engines.runs import dump_two, told


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dump_two(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    "text, engine",
    [
        ("local:3", Engine("local", "3")),
        ("dask", Engine("dask")),
        ("dask:tcp://10.0.0.7:8786", Engine("dask", "tcp://10.0.0.7:8786")),
        ("ray:auto", Engine("ray", "auto")),
        ("mpi", Engine("mpi")),
    ],
)
def test_an_engine_is_named_with_its_place(text: str, engine: Engine) -> None:
    assert Engine.named(text) == engine


@pytest.mark.parametrize("text", ["", "spark", "local:0", "local:many", "mpi:4", "dask:"])
def test_other_names_are_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(dumpcmp.SelectionError, match="is not known") as raised:
        Engine.named(text)
    assert "dask[:ADDRESS]" in raised.value.hint


@pytest.mark.parametrize("kind", ["dask", "ray", "mpi"])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("distributed", "ray", "mpi4py"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(dumpcmp.EngineError) as raised:
        Engine(kind).opened()
    assert raised.value.hint == f"pip install 'dumpcmp[{kind}]'"


def test_who_works_is_said_once() -> None:
    with pytest.raises(dumpcmp.SelectionError, match="both say who"):
        workers_of("local:2", 2)
    with workers_of("local:1") as one:
        assert isinstance(one, SerialExecutor)
    with workers_of("local:2") as two:
        assert num_workers(two) == 2


def test_batches_have_bounded_bytes_and_every_worker_gets_some() -> None:
    with ThreadPoolExecutor(4) as four:
        sizes = [1] * 100 + [40 << 20] + [20 << 20] * 2
        cut = list(in_batches(sizes, four, lambda size: size))
    assert [size for batch in cut for size in batch] == sizes
    assert len(cut) >= 16 and all(len(batch) == 1 or sum(batch) <= 32 << 20 for batch in cut)


def test_any_executor_finds_the_same_also_when_a_path_holds_another_run(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    """What workers that live on have open of an earlier run is not taken for the one that is."""
    golden, target = runs
    alone = dumpcmp.compare(golden, target)
    same = dumpcmp.compare(golden, golden, verify_digests=True)
    path = tmp_path / "mine"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for run, expected in ((target, alone), (golden, same)):
            path.unlink(missing_ok=True)
            path.symlink_to(run)
            found = dumpcmp.compare(golden, path, executor=pool, verify_digests=True)
            assert told(found) == told(expected)


def test_relative_paths_mean_the_same_to_workers_that_stand_elsewhere(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs[0].parent)
    with ThreadPoolExecutor(2) as executor:
        found = dumpcmp.compare("golden", "target", executor=executor)
        monkeypatch.chdir("/")
        assert told(found) == told(dumpcmp.compare(*runs))


def test_a_worker_of_another_version_or_without_the_archive_says_so(tmp_path: Path) -> None:
    with pytest.raises(dumpcmp.EngineError, match=r"has dumpcmp .*, and 0\.0 asks"):
        done_there("0.0", (), abs, -1)
    with pytest.raises(dumpcmp.EngineError, match=r"does not see .*nowhere"):
        done_there(dumpcmp.__version__, (str(tmp_path / "nowhere"),), abs, -1)
    assert done_there(dumpcmp.__version__, (str(tmp_path),), abs, -1) == 1


class Nobody(Executor):
    """An engine without workers: nothing is ever done."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


def test_where_no_worker_is_left_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(elsewhere, "_LOOK_SECONDS", 0.02)
    waiting = Elsewhere(Nobody(), (), lambda: 0).submit(abs, -1)
    with pytest.raises(dumpcmp.EngineError, match="no worker is left"):
        waiting.result()


@pytest.mark.parametrize("command", ["audit", "compact"])
def test_commands_say_one_sentence_of_an_engine_that_cannot_be_had(
    command: str, runs: tuple[Path, Path]
) -> None:
    ran = CliRunner().invoke(main, [command, str(runs[0]), "--executor", "spark"])
    assert ran.exit_code == 2 and "executor 'spark' is not known" in ran.output
