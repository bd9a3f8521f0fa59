"""Holds the program's signal handlers back while a capture is in the middle of its own work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

GRACE_SECONDS = 5.0  # how long a signal may wait for a disk that does not answer

AGAIN_SECONDS = 0.001
MOST_FRAMES = 24  # that putting off a signal takes: of ours, of dynamo and of threading
# Files and functions of torch, run for our sake, that drop what is raised in them.
SWALLOWING: set[str | tuple[str, str]] = set()
# Functions of torch that lose a mode if something is raised as a context of theirs begins or ends.
FRAGILE: set[tuple[str, str]] = set()

_apart: list[Callable[..., Any]] = []  # how to call what no tracer may see, the latest last
_late: dict[int, tuple[Callable[..., Any], FrameType | None, float]] = {}  # signals that wait


class Undisturbed(threading.local):
    """How deep this thread is in our own code, where no handler of the program may run.

    A handler may raise, and so leave a lock held or a record half written; it may also call a
    module, and so wait for a lock that its own thread holds. While ``with HOLD`` is open it
    waits, and runs at the end of the block as if the signal had come then. While dynamo is
    `tracing`, which is ours too in some modes and no more fit for it, only interrupts come through.
    """

    depth = 0
    tracing = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.depth = depth = max(0, self.depth - 1)
        if not depth and not self.tracing and _late:
            apart(_run_late)

    def begin_tracing(self, _: object = None) -> None:
        self.tracing += 1

    def end_tracing(self, _: object = None) -> None:
        self.tracing = max(0, self.tracing - 1)  # what has waited runs with the graph's first op


HOLD = Undisturbed()


def apart(run: Callable[..., Any], *args: Any) -> Any:
    """Call `run` where nothing traces it, though a signal may come where everything is traced."""
    return _apart[-1](run, *args) if _apart else run(*args)


@contextlib.contextmanager
def called_apart_by(call: Callable[..., Any]) -> Iterator[None]:
    """Have handlers called through `call`, which keeps a tracer from them, while the block runs."""
    _apart.append(call)
    try:
        yield
    finally:
        _apart.remove(call)


class Letting:
    """A part of a ``with HOLD`` block in which the program runs, and its handlers as usual."""

    __slots__ = ("_depth",)

    def __enter__(self) -> None:
        self._depth, HOLD.depth = HOLD.depth, 0
        if _late and not HOLD.tracing:
            try:
                apart(_run_late)
            except BaseException:
                HOLD.depth = self._depth
                raise

    def __exit__(self, *raised: object) -> None:
        HOLD.depth = self._depth


def let(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `run`, which is the program's own, out of a ``with HOLD`` block."""
    with Letting():
        return run(*args, **kwargs)


def overdue() -> bool:
    """Whether a signal has waited for so long that whatever holds it back should give up."""
    if not _late:
        return False
    return time.monotonic() - min(since for _, _, since in list(_late.values())) > GRACE_SECONDS


def _run_late() -> None:
    """Run the handlers that have waited; where one raises, the others come right after."""
    if threading.current_thread() is not threading.main_thread():
        return
    while _late:
        number, (handler, frame, _) = next(iter(_late.items()))
        del _late[number]
        try:
            handler(number, frame)
        except BaseException:
            for other in tuple(_late):
                del _late[other]
                signal.raise_signal(other)
            raise


def _is_fragile(frame: FrameType | None) -> bool:
    """Whether `frame` begins or ends a context on which torch relies."""
    if frame is None or frame.f_back is None or frame.f_code.co_filename != contextlib.__file__:
        return False
    caller = frame.f_back.f_code
    return (caller.co_filename, caller.co_name) in FRAGILE


def _is_swallowed(frame: FrameType | None) -> bool:
    """Whether nobody would hear of what is raised in `frame`, or torch would not survive it."""
    if _is_fragile(frame):
        return True
    for _ in range(4):
        if frame is None:
            return False
        code = frame.f_code
        place = code.co_filename, code.co_name
        if code.co_name == "__del__" or {code.co_filename, place} & SWALLOWING:
            return True
        frame = frame.f_back
    return False


def _interrupted(frame: FrameType | None) -> FrameType | None:
    """Where the program is, if `frame` belongs to a signal of before that is being put off."""
    outer = frame
    for _ in range(MOST_FRAMES):
        if outer is None or outer.f_code is Deferring.run.__code__:
            return frame
        if outer.f_code is Deferring.__call__.__code__:
            return _interrupted(outer.f_back)
        outer = outer.f_back
    return frame


class Deferring:
    """A handler of the program that waits while our own code runs."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        return apart(self._respond, number, frame)

    def _respond(self, number: int, frame: FrameType | None) -> Any:
        if HOLD.depth or (HOLD.tracing and number != signal.SIGINT):
            _late.setdefault(number, (self.handler, frame, time.monotonic()))
        elif _is_swallowed(_interrupted(frame)):
            again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            return self.run(number, frame)
        return None

    def run(self, number: int, frame: FrameType | None) -> Any:
        """Let the program's own handler respond."""
        return self.handler(number, frame)


def _own(handler: Any) -> Any:
    """`handler` as the program knows it."""
    return handler.handler if isinstance(handler, Deferring) else handler


def _deferring(handler: Any) -> Any:
    return Deferring(handler) if callable(handler) and not _is_plain(handler) else handler


def _is_plain(handler: Any) -> bool:
    return isinstance(handler, (int, signal.Handlers, Deferring))


class _Handlers:
    """The handlers of this process, made to wait while at least one capture runs."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._signal, self._getsignal = signal.signal, signal.getsignal

    def begin(self) -> None:
        with HOLD, self._lock:
            self._count += 1
            if self._count > 1:
                return
            self._signal, self._getsignal = signal.signal, signal.getsignal
            self._replace(_deferring)
            signal.signal, signal.getsignal = self._set, self._get

    def end(self) -> None:
        with HOLD, self._lock:
            self._count -= 1
            if self._count:
                return
            signal.signal, signal.getsignal = self._signal, self._getsignal
            self._replace(_own)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        _late.clear()

    def _replace(self, change: Callable[[Any], Any]) -> None:
        """Change every handler; only the main thread may, and only it runs handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = self._getsignal(number)
            if handler is not None and change(handler) is not handler:
                self._signal(number, change(handler))

    def _set(self, signalnum: int, handler: Any) -> Any:
        return _own(self._signal(signalnum, _deferring(handler)))

    def _get(self, signalnum: int) -> Any:
        return _own(self._getsignal(signalnum))


HANDLERS = _Handlers()
