"""Runs of one file, which a thread writes one after another."""

import threading
import time
from functools import partial
from typing import cast

import pytest

from dumpcmp.archive.write.flights import CALM_FLYING, MOST_FLYING, THREAD_NBYTES, Flights
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.pens import Flight, Pens


def test_what_follows_begins_once_what_was_before_is_done() -> None:
    pens, done = Pens(3), list[int]()
    may_end = threading.Event()

    def slowly() -> None:
        may_end.wait(10)
        done.append(0)

    flights = [Flight(1, 1, lambda: None) for _ in range(4)]
    pens.begin(flights[0], slowly)
    for number in range(1, 4):
        pens.follow(flights[number - 1], flights[number], partial(done.append, number))
    time.sleep(0.02)
    assert not done  # although two threads have nothing to do
    may_end.set()
    pens.end(flights[3])
    pens.stop()
    assert done == [0, 1, 2, 3]


def test_what_follows_a_failure_is_not_done() -> None:
    pens, done = Pens(3), list[int]()
    may_fail = threading.Event()

    def fail() -> None:
        may_fail.wait(10)
        raise OSError("no room")

    flights = [Flight(1, 1, lambda: None) for _ in range(4)]
    pens.begin(flights[0], fail)
    pens.follow(flights[0], flights[1], lambda: done.append(1))
    pens.follow(flights[1], flights[2], lambda: done.append(2))
    may_fail.set()
    for flight in flights[:3]:
        with pytest.raises(OSError, match="no room"):
            pens.end(flight)
    with pytest.raises(OSError, match="no room"):  # which is done by now
        pens.follow(flights[2], flights[3], lambda: done.append(3))
    pens.stop()
    assert not done


@pytest.mark.parametrize("nbytes", [1, THREAD_NBYTES])
def test_nothing_is_written_behind_a_run_that_has_failed(nbytes: int) -> None:
    pens, done = Pens(1), list[int]()
    flights, part = Flights(pens), cast("Part", object())

    def fail() -> None:
        raise OSError("no room")

    failing = Flight(1, 1, lambda: None)
    flights.launch_run(part, failing, fail, THREAD_NBYTES)
    while failing.num_left:
        time.sleep(0.001)
    with pytest.raises(OSError, match="no room"):
        flights.launch_run(part, Flight(1, 1, lambda: None), lambda: done.append(1), nbytes)
    pens.stop()
    assert not done


@pytest.mark.parametrize(
    ("in_haste", "nbytes", "is_due"),
    [
        (True, CALM_FLYING + 1, False),
        (True, MOST_FLYING + 1, True),
        (False, CALM_FLYING, False),
        (False, CALM_FLYING + 1, True),
    ],
)
def test_less_is_under_way_at_once_while_there_is_room(
    in_haste: bool, nbytes: int, is_due: bool
) -> None:
    pens, may_end = Pens(1), threading.Event()
    flights = Flights(pens)
    flights.in_haste = in_haste
    flights.launch(Flight(nbytes, 1, lambda: None), lambda: [may_end.wait(10)].clear())
    found = flights.is_due
    may_end.set()
    flights.land()
    pens.stop()
    assert found == is_due


@pytest.mark.parametrize("num_started", [0, 1])
def test_errands_are_done_though_no_thread_can_be_had(
    num_started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def refused(thread: threading.Thread) -> None:
        if len(started) == num_started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    pens, done, flight = Pens(3), list[int](), Flight(1, 1, lambda: None)
    pens.begin(flight, *(partial(done.append, number) for number in range(5)))
    pens.end(flight)
    pens.stop()
    assert sorted(done) == [0, 1, 2, 3, 4] and len(started) == num_started
