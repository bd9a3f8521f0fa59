"""What is the same for every span of steps: how to compare, and what earlier ones have come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dumpcmp.align.counting import Counting
from dumpcmp.align.mesh.declared import Declarations
from dumpcmp.align.renaming import Renaming
from dumpcmp.comparing.carried import Carried
from dumpcmp.comparing.effects_seen import EffectsSeen
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.remarks import Noted
from dumpcmp.comparing.same_steps import SameStep
from dumpcmp.comparing.shortcuts import allowed
from dumpcmp.comparing.showing import Showing
from dumpcmp.comparing.side import OpenRun
from dumpcmp.comparing.spans import Collected
from dumpcmp.comparing.staleness import WeightHistory
from dumpcmp.comparing.trained import Courses
from dumpcmp.judge import Checker
from dumpcmp.nouns.row import Pair, Row

if TYPE_CHECKING:
    from dumpcmp.comparing.questions.step_programs import Programs
    from dumpcmp.comparing.questions.verdicts import ValueState


class Replaying(StrEnum):
    """Which ops are run again."""

    AUTO = "auto"  # those that were given or gave out anything that is not the same to the bit
    ALL = "all"
    OFF = "off"


@dataclass(slots=True, eq=False)
class SpanComparison:
    """How to compare, and what earlier spans of steps have come to."""

    renaming: Renaming
    counting: Counting
    rule: Checker
    metrics: tuple[str, ...]
    replaying: Replaying
    allow: str | Sequence[str]
    verify_digests: bool
    showing: Showing
    device: str = "cpu"
    gathered: Collected = field(default_factory=Collected)
    noted: Noted = field(default_factory=Noted)
    latest_root: Row | None = None
    is_apart: bool = False  # the sides differ in something that an op gave out
    history: WeightHistory = field(default_factory=WeightHistory)
    courses: Courses = field(default_factory=Courses)
    carried: Carried = field(default_factory=Carried)
    effects: EffectsSeen = field(default_factory=EffectsSeen)
    programs: Programs | None = None
    states: dict[Pair, ValueState] = field(default_factory=dict)
    nbytes: int = 0  # measured

    def sorts_out(self, golden: OpenRun, target: OpenRun, finer: OpenRun | None) -> bool:
        """Whether of a step that is the same bit for bit nothing is asked but that it is."""
        is_asked = finer or self.metrics or self.verify_digests or self.showing.closely
        is_plain = self.device == "cpu" and self.replaying is not Replaying.ALL
        stated = golden.facts.declared, target.facts.declared
        is_stated = self.renaming != Renaming() or any(one != Declarations() for one in stated)
        return is_plain and not is_asked and not is_stated

    def take(self, step: SameStep, progress: Tell | None) -> None:
        """Take the rows of a step that both sides have bit for bit: nothing is wrong in it."""
        step.pass_by()
        self.history.remember(step.weights, step.golden.archive, step.target.archive)
        self.courses.pass_by()
        self.gathered.add(step.rows)
        if rows := self.effects.of_same_step(step, self.counting):
            self.gathered.add(rows)
        self.noted.shortcuts |= allowed(self.allow, step.target.archive, step.devices)
        if tell := step.telling(progress, self.nbytes):
            tell(step.nbytes, step.nbytes)
        self.nbytes += step.nbytes
