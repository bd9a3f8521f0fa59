"""What an adapter is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer


class Tool(Protocol):
    """An adapter: `answer` leaves the target's results at `result` (see ``program.py``)."""

    @property
    def name(self) -> str: ...

    def fits(self, bug: Bug, /) -> bool:
        """Whether the tool is meant for such a bug at all."""

    def answer(self, golden: Program, target: Program, room: Path, result: Path, /) -> Answer:
        """Run both programs under the tool; `room` is kept between a bug and its twin."""
