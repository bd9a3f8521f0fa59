"""Work on any executor: results in the order of the tasks, few of them under way, errors told."""

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from dumpcmp.execute import SerialExecutor, executor_for, run_each
from dumpcmp.pools import WorkerPool, interrupts_later


def square(number: int) -> int:
    time.sleep(0.002 * (number % 3))
    return number * number


@pytest.mark.parametrize(
    "executor", [SerialExecutor(), ThreadPoolExecutor(4)], ids=["serial", "threads"]
)
def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    assert list(run_each(square, range(40), executor, in_flight=7)) == [n * n for n in range(40)]


def test_processes_give_the_same() -> None:
    with executor_for(2) as executor:
        assert list(run_each(square, range(5), executor)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize(
    "executor, under_way", [(SerialExecutor(), 1), (ThreadPoolExecutor(2), 5)], ids=["one", "many"]
)
def test_few_tasks_are_under_way(executor: Executor, under_way: int) -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken = number + 1
            yield number

    results = run_each(square, tasks(), executor, in_flight=5)
    assert next(results) == 0 and taken == under_way


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        list(run_each(lambda number: 1 // number, [2, 1, 0, 3], SerialExecutor()))


def test_an_interrupted_pool_does_not_wait_for_its_tasks() -> None:
    began, others = time.monotonic(), set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt), executor_for(2) as pool:
        assert pool.submit(abs, -1).result() == 1
        pool.submit(time.sleep, 60)
        raise KeyboardInterrupt
    while {*multiprocessing.active_children()} - others and time.monotonic() - began < 30:
        time.sleep(0.01)  # the pool's own thread may have waited for it, and be about to say so
    assert time.monotonic() - began < 30


LONG = """
import sys
from dumpcmp.execute import run_each
from dumpcmp.pools import WorkerPool, interrupts_later

if __name__ == "__main__":
    with WorkerPool(2) as pool:
        for number, _ in enumerate(run_each(len, [bytes(1 << 20)] * 200, pool, in_flight=50)):
            if number == 3:
                raise KeyboardInterrupt
"""


def test_an_interrupted_pool_ends_without_a_word_whatever_it_was_writing(tmp_path: Path) -> None:
    """Its pipes are full of tasks that were cancelled, and of which nobody will hear."""
    script = tmp_path / "long.py"
    script.write_text(LONG)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("Traceback") == 1 and "Exception in thread" not in done.stderr


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts_later():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("closed", ["_writer", "_reader"])
def test_a_pool_whose_pipes_go_while_a_task_is_handed_out_is_broken(closed: str) -> None:
    """As where a worker is killed: the pool's own thread closes them at any moment."""
    with pytest.raises(BrokenProcessPool), WorkerPool(2) as pool:
        pipe = pool._executor_manager_thread_wakeup if closed == "_writer" else pool._call_queue  # type: ignore[attr-defined]
        getattr(pipe, closed).close()
        pool.submit(abs, -1)
