"""Whatever a user's metric does, there is an answer in time, and the next pair is compared."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dumpcmp.measure import metric_process
from dumpcmp.measure.metric_process import MetricProcess
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
HANGING = ("looping", "waiting", "matching", "waiting_in_c", "deaf")
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


@pytest.mark.parametrize("name", HANGING)
def test_a_metric_that_hangs_is_ended_and_asked_no_more(
    process: MetricProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.check(f"{METRICS}:{name}")  # which starts it
    short = replace(METRIC, seconds=0.5)
    monkeypatch.setattr(metric_process, "METRIC", short)
    told = f"--metric {METRICS}:{name}: no answer in 0.5 seconds, and it is asked no more"
    assert computed(process, name) == ({}, told)
    monkeypatch.undo()
    assert computed(process, name) == ({}, told), "now it had a minute"
    assert computed(process, "signs")[0]


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
