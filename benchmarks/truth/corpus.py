"""Runs the corpus: every model in every dtype and way, benign and with one fault at a time."""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from benchmarks.truth import asking, edits
from benchmarks.truth.asking import Graded
from benchmarks.truth.kinds import BENT, KINDS, planned
from benchmarks.truth.models import Model
from benchmarks.truth.noise import other_way
from benchmarks.truth.planting import Fault, fault_at, gradient_fault
from benchmarks.truth.watching import Answer, Seen, below, listing, plainly
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.outcome import Outcome

COMPILED = "compiled"
ANSWERS: dict[str, Answer] = {"same device": plainly, "other BLAS": other_way}


@dataclass(frozen=True, slots=True)
class Found:
    """One fault, and what was said of it."""

    model: Model
    dtype: str
    way: str
    fault: Fault
    graded: Graded
    compacted: Graded | None = None

    @property
    def place(self) -> str:
        return f"{self.model.name}, {self.dtype}, {self.way}"


@dataclass(frozen=True, slots=True)
class Benign:
    """A pair of sound runs, and the rows of it that fail."""

    model: Model
    dtype: str
    way: str
    forward: int
    gradients: int
    exit_code: int
    told: str
    seconds: float

    @property
    def place(self) -> str:
        return f"{self.model.name}, {self.dtype}, {self.way}"

    @property
    def is_alarm(self) -> bool:
        return bool(self.forward or self.gradients or self.exit_code)


@dataclass(frozen=True, slots=True)
class Broken:
    """A case that the product, or this table, could not carry out."""

    place: str
    said: str


@dataclass(frozen=True, slots=True)
class Part:
    """Which share of the cases is run: all, or one of `one_of`, chosen by their names."""

    one_of: int = 1
    summaries: bool = False  # compare compacted copies, too

    def has(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.one_of == 0


class Goldens:
    """The golden archives of one model in one dtype, dumped when they are first asked for."""

    def __init__(self, model: Model, dtype: str, room: Path) -> None:
        self.model, self.dtype, self.room = model, dtype, room
        self._paths: dict[bool, Path] = {}

    def __call__(self, backward: bool) -> Path:
        if backward not in self._paths:
            name = f"golden-{self.model.name}-{self.dtype}-{backward}".replace(" ", "-")
            around = partial(below, answer=plainly)
            self._paths[backward] = asking.dumped(
                self.model, self.dtype, self.room / name, around, backward=backward
            )
        return self._paths[backward]

    def seen(self) -> list[Seen]:
        made, inputs = self.model.made(self.dtype), self.model.given(self.dtype)
        return listing(made, lambda: self.model.step(made, inputs, backward=False))


def faults_of(model: Model, dtype: str, way: str, seen: list[Seen]) -> Iterator[Fault]:
    """The faults of one model in one dtype and way; their places depend on all three."""
    seed = f"{model.name} {dtype} {way}"
    yield from map(fault_at, planned(seen, dtype, seed))
    yield from edits.wrong_weights(model, dtype, seen, seed)
    yield from edits.wrong_constants(model, dtype, seen, seed)
    for plan in planned(seen, dtype, f"{seed} training", KINDS[:1]):
        yield replace(fault_at(plan, backward=True), name=f"in training: {plan.kind.name}")
    yield from map(gradient_fault, planned(seen, dtype, f"{seed} gradients", BENT))


def found_of(
    model: Model, dtype: str, way: str, goldens: Goldens, part: Part
) -> Iterator[Found | Broken]:
    """Plant every fault of `part`, one at a time, and ask for it."""
    for fault in faults_of(model, dtype, way, goldens.seen()):
        place = f"{model.name}, {dtype}, {way}: {fault.name} at {', '.join(sorted(fault.ops)[:2])}"
        if not part.has(place):
            continue
        try:
            found = one_fault(model, dtype, way, fault, goldens, part)
        except Exception as raised:  # a case that breaks is a row of its own
            told("broken", place)
            yield Broken(place, f"{type(raised).__name__}: {raised} {_where(raised)}")
            continue
        if fault.certain or fault.found:  # what no gradient reached was no fault
            told(found.graded.grade, place)
            yield found


def one_fault(
    model: Model, dtype: str, way: str, fault: Fault, goldens: Goldens, part: Part
) -> Found:
    golden = goldens(fault.backward)
    around = partial(fault.plant, answer=ANSWERS[way])
    target = dumped_beside(golden, model, dtype, around, fault.backward)
    if fault.in_gradient:
        fault.aliases = asking.aliases(golden, fault)
    graded = asking.graded(*_swapped(asking.asked(golden, target), fault))
    if not part.summaries:
        return Found(model, dtype, way, fault, graded)
    pair = asking.compacted(golden), asking.compacted(target)
    small = asking.graded(*_swapped(asking.asked(*pair), fault))
    return Found(model, dtype, way, fault, graded, small)


def _swapped(answered: tuple[Outcome, float], fault: Fault) -> tuple[Outcome, Fault, float]:
    return answered[0], fault, answered[1]


def dumped_beside(
    golden: Path,
    model: Model,
    dtype: str,
    around: Callable[[nn.Module], AbstractContextManager[None]],
    backward: bool,
    mode: str = "eager",
) -> Path:
    """Dump a target into the one place where targets lie, which it takes from the last one."""
    target = golden.with_name("target")
    asking.cleared(target)
    return asking.dumped(model, dtype, target, around, backward=backward, mode=mode)


def benign_of(model: Model, dtype: str, way: str, goldens: Goldens) -> Benign | Broken:
    """A sound target in another way, forward and backward."""
    place = f"{model.name}, {dtype}, {way}: nothing planted"
    mode = "compiled" if way == COMPILED else "eager"
    around = untouched if way == COMPILED else partial(below, answer=ANSWERS[way])
    try:
        golden = goldens(True)
        target = dumped_beside(golden, model, dtype, around, True, mode)
        outcome, seconds = asking.asked(golden, target)
    except Exception as raised:
        told("broken", place)
        return Broken(place, f"{type(raised).__name__}: {raised} {_where(raised)}")
    forward, gradients = asking.alarms(outcome)
    code, said = outcome.exit_code, asking.said(outcome)
    found = Benign(model, dtype, way, forward, gradients, code, said, seconds)
    told("alarm" if found.is_alarm else "sound", place)
    return found


def untouched(_: nn.Module) -> AbstractContextManager[None]:
    """A compiled model must have no mode around it: dynamo would trace that, too."""
    return nullcontext()


def _where(raised: Exception) -> str:
    """The place that raised, unless it is the product telling what is wrong."""
    if isinstance(raised, DumpcmpError):
        return ""
    last = traceback.extract_tb(raised.__traceback__)[-1]
    return f"({Path(last.filename).name}:{last.lineno})"


def told(word: str, place: str) -> None:
    print(f"{word:8} {place}", file=sys.stderr, flush=True)
