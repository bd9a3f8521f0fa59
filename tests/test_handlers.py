"""Signals whose handlers raise: the program hears of each, wherever it was when they came."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from dumpcmp import handlers


class TooLateError(Exception):
    pass


@pytest.fixture
def captured() -> Iterator[None]:
    """Handlers as a capture has them, and one of the program's that raises."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise TooLateError

    handlers.HANDLERS.begin()
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)
    handlers.HANDLERS.end()


class Finalized:
    """Python drops what is raised while it ends."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


class SlowTimer(threading.Timer):
    """Gets going on a busy machine: at first its time is up before who started it goes on."""

    is_busy = True

    def start(self) -> None:
        super().start()
        was_busy, SlowTimer.is_busy = SlowTimer.is_busy, False
        for _ in range(100 * was_busy):
            time.sleep(0.001)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("timer", [threading.Timer, SlowTimer])
def test_what_a_handler_raises_in_a_finalizer_is_heard_of_after_it(
    monkeypatch: pytest.MonkeyPatch, timer: type[threading.Timer]
) -> None:
    monkeypatch.setattr(threading, "Timer", timer)
    monkeypatch.setattr(SlowTimer, "is_busy", True)
    finalized = Finalized()
    with pytest.raises(TooLateError):
        del finalized
        time.sleep(5)


@pytest.mark.usefixtures("captured")
def test_what_a_handler_raises_in_a_handler_is_heard_of() -> None:
    def second(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(TooLateError):
            signal.raise_signal(signal.SIGUSR1)
            pytest.fail("it was swallowed")
        raise TooLateError

    before = signal.signal(signal.SIGUSR2, second)
    try:
        with pytest.raises(TooLateError):
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
