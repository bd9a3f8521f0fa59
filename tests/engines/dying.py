"""Workers that die at a given task, before they did it or after, at each stage that they share."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np

import dumpcmp
from dumpcmp.execute import P, R
from tests.engines.runs import told

WHEN = ("before", "after")


class DeadlyExecutor(Executor):
    """Hands tasks to `inner`; the worker of task number `doomed` ends itself, once."""

    num_workers = 2

    def __init__(self, inner: Executor, doomed: int, when: str, mark: Path) -> None:
        self.inner, self.doomed, self.when, self.mark = inner, doomed, when, mark
        self.num_tasks = 0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        self.num_tasks += 1
        if self.num_tasks != self.doomed:
            return self.inner.submit(fn, *args, **kwargs)
        return self.inner.submit(_dying, self.mark, self.when, fn, args, kwargs)


def _dying(mark: Path, when: str, fn: Callable[..., R], args: Any, kwargs: Any) -> R:
    if when == "before":
        _die_once(mark)
    result = fn(*args, **kwargs)
    if when == "after":
        _die_once(mark)
    return result


def _die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


Stage = Callable[[tuple[Path, Path], Path, Executor | None], object]


def comparing(runs: tuple[Path, Path], room: Path, executor: Executor | None) -> object:
    outcome = dumpcmp.compare(*runs, replay="all", executor=executor)
    return outcome.exit_code, told(outcome)


def auditing(runs: tuple[Path, Path], room: Path, executor: Executor | None) -> object:
    return dumpcmp.audit(runs[0], executor=executor)


def compacting(runs: tuple[Path, Path], room: Path, executor: Executor | None) -> object:
    shutil.copytree(runs[1], room / "compacted")
    done = dumpcmp.compact(room / "compacted", executor=executor)
    sound = dumpcmp.audit(room / "compacted").sound
    left = list(room.rglob("*draft*"))
    shutil.rmtree(room / "compacted")
    return done.problems, sound, left


def importing(runs: tuple[Path, Path], room: Path, executor: Executor | None) -> object:
    (room / "d").mkdir(exist_ok=True)
    for step in range(4):
        np.savez(room / "d" / f"step{step}.npz", a=np.full((50, 3), step), b=np.arange(4.0))
    done = dumpcmp.import_dump(room / "d", room / "out", overwrite=True, executor=executor)
    digests = {str(key): each.digest for key, each in dumpcmp.Archive(room / "out").items()}
    return done.num_values, done.num_steps, digests, dumpcmp.audit(room / "out").sound


STAGES: dict[str, Stage] = {
    stage.__name__: stage for stage in (comparing, auditing, compacting, importing)
}


def check_stage(name: str, when: str, inner: Executor, runs: tuple[Path, Path], room: Path) -> None:
    """Assert that a stage comes to the same where a worker dies at its first task, or its last."""
    alone = STAGES[name](runs, room, None)
    counting = DeadlyExecutor(inner, 0, when, room / "mark")
    assert STAGES[name](runs, room, counting) == alone and counting.num_tasks
    for doomed in {1, counting.num_tasks}:
        mark = room / f"mark{doomed}"
        deadly = DeadlyExecutor(inner, doomed, when, mark)
        assert STAGES[name](runs, room, deadly) == alone, f"task {doomed}"
        assert mark.exists(), f"nobody died at task {doomed} of {counting.num_tasks}"
