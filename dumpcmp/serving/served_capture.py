"""A capture inside of a worker of an engine: switched on by the environment, open for requests."""

from __future__ import annotations

import argparse
import atexit
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.options import parse_nbytes

if TYPE_CHECKING:  # workers import it themselves, and only if they capture
    from torch import nn

PATH, OPTIONS = "DUMPCMP_SERVING_PATH", "DUMPCMP_SERVING_OPTIONS"


class _OptionWords(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SelectionError(f"{OPTIONS}: {message}", hint="options are those of dumpcmp dump")


def _parser() -> argparse.ArgumentParser:
    words = _OptionWords(prog=OPTIONS, add_help=False)
    for name in ("--mode", "--token", "--io", "--level", "--keep"):
        words.add_argument(name)
    words.add_argument("--layer", action="append")
    words.add_argument("--every", type=int, default=1)
    words.add_argument("--sample-rows", type=int)
    for name in ("--disk-budget", "--buffer"):
        words.add_argument(name, type=parse_nbytes)
    for name in ("--weights", "--overwrite"):
        words.add_argument(name, action="store_true")
    return words


@dataclass(slots=True)
class ServedCapture:
    """The capture of one worker. It is open while requests run, and closed in warm-up runs."""

    path: str
    options: argparse.Namespace
    num_requests_running: int = 0  # nested calls of the engine that run requests
    num_dummies: int = 0  # nested runs that warm up, profile or capture graphs
    _lifetime: ExitStack | None = None
    _rows: ExitStack | None = None

    @property
    def is_open(self) -> bool:
        """Whether what runs now is of requests."""
        return self.num_requests_running > 0 and self.num_dummies == 0

    def begin(self, *roots: nn.Module) -> None:
        """Capture these models from now on; nothing is recorded until requests run."""
        from dumpcmp.dumping.capturing import capturing
        from dumpcmp.dumping.modes import parse_mode
        from dumpcmp.dumping.retention import Retention
        from dumpcmp.nouns.selection import make_tap

        if self._lifetime is not None:
            return
        asked = self.options
        tap = make_tap(
            asked.token, asked.layer, asked.io or "all", False, asked.weights,
            asked.level or "functions", asked.every,
        )  # fmt: skip
        kept = Retention(
            asked.keep or "full", disk_budget=asked.disk_budget, buffer=asked.buffer,
            sample_rows=asked.sample_rows,
        )  # fmt: skip
        self._lifetime = ExitStack()
        taken = capturing(
            roots, self.path, tap, parse_mode(asked.mode or "eager"), kept,
            overwrite=asked.overwrite,
        )  # fmt: skip
        self._lifetime.enter_context(taken).record_if(lambda: self.is_open)
        atexit.register(self.end)

    @contextmanager
    def running_requests(self) -> Iterator[None]:
        """What runs in the block is of requests."""
        self.num_requests_running += 1
        try:
            yield
        finally:
            self.num_requests_running -= 1
            if not self.num_requests_running and self._rows is not None:
                self._rows.close()
                self._rows = None

    @contextmanager
    def running_dummies(self) -> Iterator[None]:
        """What runs in the block is of no request."""
        self.num_dummies += 1
        try:
            yield
        finally:
            self.num_dummies -= 1

    def name_rows(self, names: Sequence[str], lengths: Sequence[int]) -> None:
        """Say whose rows the next call of the model has; they lie one request after the other."""
        from dumpcmp.taps.recording.row_identity import requests

        if self._rows is not None:
            self._rows.close()
        self._rows = ExitStack()
        self._rows.enter_context(requests(*names, lengths=lengths))

    @contextmanager
    def naming(self, ids: Sequence[tuple[str, int]]) -> Iterator[None]:
        """Say of each row of a call in the block which request and position it is."""
        from dumpcmp.taps.recording.row_identity import requests

        names, starts = [name for name, _ in ids], [position for _, position in ids]
        with requests(*names, lengths=[1] * len(names), starts=starts):
            yield

    def end(self) -> None:
        """Close the archive."""
        atexit.unregister(self.end)
        if self._lifetime is not None:
            self._lifetime.close()
            self._lifetime = None


def served_capture() -> ServedCapture | None:
    """What the environment asks for; None where it asks for nothing."""
    path = os.environ.get(PATH)
    if not path:
        return None
    return ServedCapture(path, _parser().parse_args(shlex.split(os.environ.get(OPTIONS, ""))))


def wrapped(owner: Any, name: str, around: Any) -> None:
    """Have `around` called with the method `name` of `owner` before its own arguments."""
    method = getattr(owner, name, None)
    if method is None:
        return

    def instead(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    instead.__name__, instead.__doc__ = name, method.__doc__
    setattr(owner, name, instead)
