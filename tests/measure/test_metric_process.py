"""Whatever a user's metric does, there is an answer in time, and the next pair is compared."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dumpcmp.measure import metric_process
from dumpcmp.measure.metric_process import MetricProcess, computed_seconds
from dumpcmp.nouns.budgets import METRIC
from dumpcmp.nouns.errors import SelectionError

METRICS = "tests.measure.metrics_of_users"
GOLDEN, TARGET = np.array([-1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])
RAISED = {
    "raising": "ValueError: no such number",
    "leaving": "SystemExit",
    "interrupted": "KeyboardInterrupt",
    "recursing": "RecursionError",
    "out_of_memory": "MemoryError",
    "asking": "EOFError",
    "wordy": "ValueError: could not convert string to float",
}
COMPUTING, WAITING = ("looping", "matching"), ("waiting", "waiting_in_c", "deaf")
ENDING = {"ending": "exit code 0", "crashing": "SIGSEGV", "killing": "SIGKILL"}


@pytest.fixture(scope="module")
def process() -> Iterator[MetricProcess]:
    yield MetricProcess()


def computed(process: MetricProcess, name: str) -> tuple[dict[str, float], str]:
    return process.computed(f"{METRICS}:{name}", GOLDEN, TARGET)


def test_numbers_come_by_column(process: MetricProcess) -> None:
    assert computed(process, "signs") == ({"flipped": 1.0, "count": 3.0}, "")
    assert computed(process, "largest") == ({"largest.0": 3.0, "largest.1": 4.0}, "")


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 1)])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "bool", "uint8"])
def test_arrays_arrive_as_they_are(process: MetricProcess, shape: Any, dtype: str) -> None:
    array = np.ones(shape, dtype)
    found, problem = process.computed(f"{METRICS}:shapes", array, array)
    assert not problem
    assert found == {"numel": array.size, "dims": array.ndim, "width": array.itemsize}


@pytest.mark.parametrize("name", RAISED)
def test_what_a_metric_raises_is_told_of_each_pair(process: MetricProcess, name: str) -> None:
    for _ in range(2):
        found, problem = computed(process, name)
        assert not found and problem.startswith(f"--metric {METRICS}:{name}: {RAISED[name]}")
    assert computed(process, "signs")[0]


def test_what_a_metric_writes_reaches_nobody(process: MetricProcess) -> None:
    before = GOLDEN.copy(), TARGET.copy()
    assert computed(process, "turning") == ({"turning": 7.0}, "")
    assert (before[0] == GOLDEN).all() and (before[1] == TARGET).all()


@pytest.mark.parametrize("name", [*COMPUTING, *WAITING])
def test_a_metric_that_hangs_is_ended_and_asked_no_more(
    process: MetricProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.check(f"{METRICS}:{name}")  # which starts it
    monkeypatch.setattr(metric_process, "METRIC", replace(METRIC, seconds=0.1))
    limit = "0.1 seconds of computing" if name in COMPUTING else "1 seconds"
    told = f"--metric {METRICS}:{name}: no answer in {limit}, and it is asked no more"
    assert computed(process, name) == ({}, told)
    monkeypatch.undo()
    assert computed(process, name) == ({}, told), "now it had a minute"
    assert computed(process, "signs")[0]


def test_a_metric_that_a_busy_machine_keeps_waiting_is_waited_for(
    process: MetricProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped until twice the seconds have passed that it may compute."""
    process.check(f"{METRICS}:stopped")
    began, let_go = time.monotonic(), []

    def looked_at(pid: int) -> float:
        if time.monotonic() - began > 2:
            let_go.append(pid)
            os.kill(pid, signal.SIGCONT)
        return computed_seconds(pid)

    monkeypatch.setattr(metric_process, "METRIC", replace(METRIC, seconds=1.0))
    monkeypatch.setattr(metric_process, "computed_seconds", looked_at)
    assert computed(process, "stopped") == ({"stopped": 5.0}, "")
    assert let_go


def test_what_a_process_computes_is_counted_and_what_it_waits_for_is_not(
    process: MetricProcess,
) -> None:
    before = computed_seconds(os.getpid()), time.thread_time()
    assert sum(range(3_000_000))
    counted = computed_seconds(os.getpid()) - before[0]
    assert counted == pytest.approx(time.thread_time() - before[1], abs=0.05)


@pytest.mark.parametrize(
    "name, told", [("hidden", "its process listens no more"), ("babbling", "cannot be read")]
)
def test_a_metric_that_meddles_with_its_process_is_told(
    process: MetricProcess, name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_process, "GRACE_SECONDS", 0.1)
    found, problem = computed(process, name)
    assert not found and told in problem
    assert computed(process, "signs")[0]


def test_what_hangs_after_it_answered_is_ended_though_it_does_not_listen(
    process: MetricProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.ones(1 << 17)  # more than a pipe takes
    assert computed(process, "blocking") == ({"blocking": 1.0}, "")
    monkeypatch.setattr(metric_process, "METRIC", replace(METRIC, seconds=0.05))
    found, problem = process.computed(f"{METRICS}:blocking", large, large)
    assert not found and "no answer in 1.5 seconds" in problem
    monkeypatch.undo()
    assert computed(process, "signs")[0]


def test_a_fork_that_answers_as_well_gives_no_other_pair_its_number() -> None:
    process = MetricProcess()
    for number in (1.0, 2.0, 3.0, 4.0):
        pair = np.array([number]), np.array([0.0])
        assert process.computed(f"{METRICS}:doubled", *pair) == ({"doubled": number}, "")


@pytest.mark.parametrize("name", ENDING)
def test_a_metric_that_ends_its_process_is_told(process: MetricProcess, name: str) -> None:
    found, problem = computed(process, name)
    assert not found and f"its process ended ({ENDING[name]}), and it is asked no more" in problem
    assert computed(process, "signs")[0]


@pytest.mark.parametrize("name", ["tests.nothing:f", f"{METRICS}:nothing", "math:pi"])
def test_what_is_no_metric_is_refused(process: MetricProcess, name: str) -> None:
    with pytest.raises(SelectionError, match=f"--metric {name}"):
        process.check(name)


def test_a_process_that_nobody_asks_ends_and_the_next_question_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = metric_process._PROGRAM.replace("import serve;", "import serve, __name__ as n; ")
    hasty = "sys.modules[n].IDLE_SECONDS = 0.0; "
    monkeypatch.setattr(
        metric_process, "_PROGRAM", program.replace("serve(int", hasty + "serve(int")
    )
    process = MetricProcess()
    for _ in range(3):
        assert computed(process, "signs")[0]


def test_no_process_outlives_who_asked() -> None:
    process = MetricProcess()
    process.check(f"{METRICS}:signs")
    program: subprocess.Popen[bytes] = process._program
    assert program.poll() is None
    del process
    gc.collect()
    assert program.poll() is not None
