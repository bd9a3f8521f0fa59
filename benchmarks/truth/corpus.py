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
from benchmarks.truth.watching import Answer, Seen, below, listing, one_of, plainly
from dumpcmp.nouns.errors import DumpcmpError

COMPILED = "compiled"
SEVERAL = one_of("lstm gru topk sort max min split chunk unbind")  # that give several tensors
ANSWERS: dict[str, Answer] = {"same device": plainly, "other BLAS": other_way}


@dataclass(frozen=True, slots=True)
class Place:
    """A model in one dtype, run in one way."""

    model: str
    kind: str
    dtype: str
    way: str

    def __str__(self) -> str:
        return f"{self.model}, {self.dtype}, {self.way}"


@dataclass(frozen=True, slots=True)
class Found:
    """One fault, and what was said of it."""

    place: Place
    fault: str
    ops: tuple[str, ...]
    is_sure: bool  # it can be told from rounding
    evidence: str
    in_gradient: bool
    graded: Graded
    compacted: Graded | None = None


@dataclass(frozen=True, slots=True)
class Benign:
    """A pair of sound runs, and the rows of it that fail."""

    place: Place
    forward: int
    gradients: int
    exit_code: int
    told: str
    seconds: float

    @property
    def is_alarm(self) -> bool:
        return bool(self.forward or self.gradients or self.exit_code)


@dataclass(frozen=True, slots=True)
class Broken:
    """A case that the product, or this table, could not carry out."""

    place: str
    said: str


Case = Found | Benign | Broken


@dataclass(frozen=True, slots=True)
class Part:
    """Which share of the cases is run: all, or the `nth` of `one_of`, chosen by their names."""

    one_of: int = 1
    nth: int = 0
    summaries: bool = False  # compare compacted copies, too

    @property
    def is_long(self) -> bool:
        """Whether there is time for every sound pair."""
        return self.one_of < 8

    def has(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.one_of == self.nth


class Goldens:
    """The golden archives of one model in one dtype, dumped when they are first asked for."""

    def __init__(self, model: Model, dtype: str, room: Path, device: str = "cpu") -> None:
        self.model, self.dtype, self.room = model, dtype, room
        self.device = device  # of the targets; golden runs are on the CPU
        self._paths: dict[bool, Path] = {}

    def __call__(self, backward: bool) -> Path:
        if backward not in self._paths:
            path = self.room / ("golden-training" if backward else "golden")
            asking.dumped(self.model, self.dtype, path, untouched, backward=backward)
            self._paths[backward] = path
        return self._paths[backward]

    def target(self, around: asking.Around, backward: bool, mode: str = "eager") -> Path:
        """Dump a target into the one place where targets lie, which it takes from the last one."""
        path = self.room / "target"
        asking.cleared(path)
        return asking.dumped(
            self.model, self.dtype, path, around, backward=backward, mode=mode, device=self.device
        )

    def seen(self) -> list[Seen]:
        made, inputs = self.model.made(self.dtype), self.model.given(self.dtype)
        return listing(made, lambda: self.model.step(made, inputs, backward=False))


def untouched(_: nn.Module) -> AbstractContextManager[None]:
    """Nothing around a model: golden runs have nothing, and dynamo would trace a mode, too."""
    return nullcontext()


# Faults


def faults_of(model: Model, dtype: str, way: str, seen: list[Seen]) -> Iterator[Fault]:
    """The faults of one model in one dtype and way; their places depend on all three."""
    seed = f"{model.name} {dtype} {way}"
    yield from map(fault_at, planned(seen, dtype, seed))
    yield from edits.wrong_weights(model, dtype, seen, seed)
    yield from edits.wrong_constants(model, dtype, seen, seed)
    for plan in planned(seen, dtype, f"{seed} training", KINDS[:1]):
        yield replace(fault_at(plan, backward=True), name=f"in training: {plan.kind.name}")
    single = [one for one in seen if one.site.function not in SEVERAL]
    yield from map(gradient_fault, planned(single, dtype, f"{seed} gradients", BENT))


def found_of(goldens: Goldens, way: str, part: Part) -> Iterator[Case]:
    """Plant every fault of `part`, one at a time, and ask for it."""
    place = place_of(goldens, way)
    for fault in faults_of(goldens.model, goldens.dtype, way, goldens.seen()):
        words = f"{place}: {fault.name} at {', '.join(sorted(fault.ops)[:2])}"
        if not part.has(words):
            continue
        around = partial(fault.plant, answer=ANSWERS[way])
        found = carried_out(words, partial(asked_for, fault, goldens, around, place, part))
        if fault.certain or fault.found:  # what no gradient reached was no fault
            yield found


def asked_for(
    fault: Fault,
    goldens: Goldens,
    around: asking.Around,
    place: Place,
    part: Part,
) -> Found:
    """Dump a target with `fault`, compare it, and grade what is said."""
    golden = goldens(fault.backward)
    mode = "compiled" if place.way == COMPILED else "eager"
    target = goldens.target(around, fault.backward, mode)
    if fault.in_gradient:
        fault.aliases = asking.aliases(golden, fault)
    graded = asking.graded(*asking.asked(golden, target), fault)
    small = None
    if part.summaries:
        pair = asking.compacted(golden), asking.compacted(target)
        small = asking.graded(*asking.asked(*pair), fault)
    ops = tuple(sorted(fault.ops)[:3])
    sure, seen = fault.detectable, fault.evidence
    return Found(place, fault.name, ops, sure, seen, fault.in_gradient, graded, small)


# What is sound


def benign_of(goldens: Goldens, way: str) -> Case:
    """A sound target in another way, forward and backward."""
    place = place_of(goldens, way)
    return carried_out(f"{place}: nothing planted", lambda: _sound(goldens, place))


def _sound(goldens: Goldens, place: Place) -> Benign:
    is_compiled = place.way == COMPILED
    around = untouched if is_compiled else partial(below, answer=ANSWERS[place.way])
    golden = goldens(True)
    mode = "compiled" if is_compiled else "eager"
    target = goldens.target(around, True, mode)
    outcome, seconds = asking.asked(golden, target)
    said = asking.said(outcome)
    return Benign(place, *asking.alarms(outcome), outcome.exit_code, said, seconds)


def carried_out(words: str, case: Callable[[], Found | Benign]) -> Case:
    """The case, or that it broke: such a one is a row of its own."""
    try:
        found: Case = case()
    except Exception as raised:
        found = Broken(words, f"{type(raised).__name__}: {raised} {_where(raised)}")
    match found:
        case Found():
            word = found.graded.grade
        case Benign():
            word = "alarm" if found.is_alarm else "sound"
        case _:
            word = "broken"
    print(f"{word:8} {words}", file=sys.stderr, flush=True)
    return found


def place_of(goldens: Goldens, way: str) -> Place:
    return Place(goldens.model.name, goldens.model.kind, goldens.dtype, way)


def _where(raised: Exception) -> str:
    """The place that raised, unless it is the product telling what is wrong."""
    if isinstance(raised, DumpcmpError):
        return ""
    last = traceback.extract_tb(raised.__traceback__)[-1]
    return f"({Path(last.filename).name}:{last.lineno})"
