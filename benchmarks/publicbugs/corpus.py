"""What a folder declares of its bug, and the list of all folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from torch import Tensor

HOME = Path(__file__).parent
KINDS = ("compiled", "kernel", "model", "hugging face", "training", "parallel", "quantised", "port")
Results = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True)
class Guilty:
    """Where the bug is: functions or values (`grad.*`), and if they matter the module, rank, step.

    Patterns are those of `fnmatch`, in the words of the bug or of its reference. `near` are
    functions or modules beside it, which are the right region. `ranks` are wrong where the others
    are right.
    """

    ops: tuple[str, ...]
    module: str = "*"
    near: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True)
class Bug:
    """A public bug: its thread, its kind, what is guilty, and how it is seen without any tool."""

    thread: str  # owner/repository#number, or a URL
    kind: str
    guilty: Guilty
    seen: str  # how to see it without any tool; `reproduce` asserts it
    needs: Mapping[str, str] = field(default_factory=dict)  # packages besides torch, and versions
    ranks: int = 1
    trains: bool = False  # gradients matter
    planted: bool = False  # the reverted patch is planted, since the version of the bug is too old
    tolerance: float = 1e-4  # of the results, relative to the largest right one
    held_out: bool = False  # collected before any tool was run on it
    title: str = ""
    name: str = ""

    @property
    def url(self) -> str:
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/issues/{number}" if number else self.thread

    @property
    def has_reference(self) -> bool:
        return (HOME / self.name / "reference.py").exists()


@dataclass(frozen=True)
class Program:
    """One of a bug's programs, as arguments of ``python -m benchmarks.publicbugs.program``."""

    bug: str
    file: str  # bug, fixed or reference
    compiled: bool = False
    ranks: int = 1
    trains: bool = False
    uncompiled: bool = False  # torch.compile does nothing

    @property
    def arguments(self) -> list[str]:
        words = ["benchmarks.publicbugs.program", self.bug, self.file]
        return [*words, "--eager"] if self.uncompiled else words

    @property
    def label(self) -> str:
        return f"{self.file}-{'compiled' if self.compiled else 'eager'}"


def names() -> list[str]:
    wanted = os.environ.get("BUGS", "")
    found = sorted(path.parent.name for path in HOME.glob("*/bug.py"))
    return [name for name in found if not wanted or name in wanted.split(",")]


def load(name: str) -> Bug:
    from dataclasses import replace

    module = import_module(f"benchmarks.publicbugs.{name}.bug")
    title = (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    bug: Bug = replace(module.BUG, name=name, title=title)
    assert bug.kind in KINDS, f"{name}: {bug.kind!r} is no kind; there are {', '.join(KINDS)}"
    return bug


def target_of(bug: Bug, file: str) -> Program:
    """The bug or its fixed twin, as its user runs it."""
    return Program(bug.name, file, bug.kind == "compiled", bug.ranks, bug.trains)


def golden_of(bug: Bug, file: str) -> Program:
    """What is right for the bug or for its twin."""
    if bug.has_reference:
        return Program(bug.name, "reference", trains=bug.trains)
    if bug.kind == "compiled":
        return Program(bug.name, file, trains=bug.trains, uncompiled=True)
    return Program(bug.name, "fixed", ranks=bug.ranks, trains=bug.trains)
