"""A fuzzer that is guided by coverage: what reaches a new pair of lines is changed again."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import dumpcmp

PACKAGE = str(Path(dumpcmp.__file__).parent)
NUMBERS = (0, 1, 127, 255, 2**15, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
WORDS = (
    b"0", b"-1", b"1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"[[[[", b"}", b'"',
    b"\\ud800", b"*", b"**", b"{a,b}", b"<<: *a", b"&a ", b"!!python/object:os.system", b"\n",
    b": ", b"- ",
    b"float6", b"bfloat16", b"output.0", b"../", b"\x00", b"\xff", b"9" * 40,
)  # fmt: skip


@dataclass
class Guided:
    """Runs `read` on changed inputs; what it has not reached before is kept among `inputs`."""

    read: Callable[[bytes], object]
    inputs: list[bytes]
    draws: random.Random
    longest: float = 5.0  # seconds of computing for one input
    traced_every: int = 4  # of the others nothing is known but whether they are read
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    kept: list[bytes] = field(default_factory=list)
    num_runs: int = 0

    def run(self, count: int) -> None:
        """Read so many inputs. Whatever `read` raises goes through, with the input as its note."""
        self.read(self.inputs[0])  # which imports what it needs
        for known in self.inputs:
            self._reads_anew(known)
        for number in range(count):
            content = self.changed()
            if number % self.traced_every:
                self._timed(content)
            elif self._reads_anew(content):
                self.inputs.append(content)
                self.kept.append(content)

    def changed(self) -> bytes:
        """One of the inputs, changed a few times; perhaps with a piece of another one."""
        chosen = self.inputs[-1] if self.draws.random() < 0.1 else self.draws.choice(self.inputs)
        room = bytearray(chosen)
        for _ in range(self.draws.choice((1, 1, 1, 2, 4))):
            _change(room, self.draws, self.inputs)
        return bytes(room)

    def _reads_anew(self, content: bytes) -> bool:
        """Whether reading reaches a pair of lines that no input has reached."""
        found: set[tuple[str, int, int]] = set()
        with _traced(found):
            self._timed(content)
        is_new = not found <= self.seen
        self.seen |= found
        return is_new

    def _timed(self, content: bytes) -> None:
        began = time.thread_time()
        try:
            self.read(content)
        except BaseException as error:
            error.add_note(f"input: {content[:4000]!r}")
            raise
        self.num_runs += 1
        took = time.thread_time() - began
        assert took < self.longest, f"{took:.1f} s of computing for {content[:4000]!r}"


def _change(room: bytearray, draws: random.Random, others: Sequence[bytes]) -> None:
    at = draws.randrange(len(room) + 1)
    match draws.randrange(8):
        case 0 if at < len(room):
            room[at] ^= 1 << draws.randrange(8)
        case 1:
            del room[at : at + draws.randrange(1, 40)]
        case 2:
            start = draws.randrange(len(room) + 1)
            room[at:at] = room[start : start + draws.randrange(1, 200)]
        case 3:
            room[at:at] = draws.choice(WORDS)
        case 4:
            word = draws.choice(WORDS)
            room[at : at + len(word)] = word
        case 5:
            width = draws.choice((1, 2, 4, 8))
            number = draws.choice(NUMBERS) & (256**width - 1)
            place = at & -width
            room[place : place + width] = number.to_bytes(width, draws.choice(("little", "big")))
        case 6:
            other = draws.choice(others)
            start = draws.randrange(len(other) + 1)
            room[at : at + draws.randrange(200)] = other[start : start + draws.randrange(200)]
        case _:
            del room[at:]


@contextmanager
def _traced(found: set[tuple[str, int, int]]) -> Iterator[None]:
    """Have `found` hold the pairs of lines of the package that follow each other."""

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return None
        last = frame.f_lineno

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                found.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
