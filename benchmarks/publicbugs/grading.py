"""Grade what a tool answered; who answered is not known here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from benchmarks.publicbugs.corpus import Guilty

NUM_PLACES = 3  # places of an answer that count: an answer that names everything names nothing


class Says(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    CRASHED = "crashed"


class Grade(StrEnum):
    """How an answer to a bug, or to its twin, is graded."""

    EXACT = "exact op"
    REGION = "right region"
    WRONG = "wrong place"
    NO_PLACE = "seen, no place"
    UNDECIDED = "undecided"
    MISSED = "missed"
    BOTH = "alarm on both"  # the same is said of the twin, which is right
    DISTURBED = "disturbed away"
    CRASHED = "crashed"
    NOT_FOR_IT = "-"
    QUIET = "quiet"  # of a twin
    ALARM = "alarm"


@dataclass(frozen=True)
class Place:
    """A place that an answer names; what the tool does not say is empty."""

    op: str = ""
    module: str = ""
    value: str = ""
    ranks: tuple[int, ...] = ()
    step: int | None = None

    def __str__(self) -> str:
        where = "/".join(word for word in (self.module, self.op, self.value) if word)
        ranks = f" rank {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return where + ranks + (f" step {self.step}" if self.step else "")


@dataclass(frozen=True)
class Answer:
    """What a tool said of a pair of programs, in how many commands and seconds."""

    says: Says
    places: Sequence[Place] = ()
    text: str = ""
    commands: int = 0
    seconds: float = 0.0
    is_right: bool = False  # the target gave the right results under the tool


def grade(answer: Answer, guilty: Guilty, twin: Answer | None = None) -> Grade:
    """Grade an answer to a bug; an alarm that the twin gets as well is no evidence of the bug."""
    if answer.says is Says.CRASHED:
        return Grade.CRASHED
    if answer.is_right:
        return Grade.DISTURBED
    if answer.says is not Says.DIFFERENT:
        return Grade.MISSED if answer.says is Says.SAME else Grade.UNDECIDED
    if twin is not None and twin.says is Says.DIFFERENT and twin.places == answer.places:
        return Grade.BOTH
    places = [place for place in answer.places if place != Place()][:NUM_PLACES]
    if not places:
        return Grade.NO_PLACE
    if any(_is_exact(place, guilty) for place in places):
        return Grade.EXACT
    return Grade.REGION if any(_is_near(place, guilty) for place in places) else Grade.WRONG


def grade_twin(answer: Answer) -> Grade:
    match answer.says:
        case Says.SAME:
            return Grade.QUIET
        case Says.DIFFERENT:
            return Grade.ALARM
        case Says.UNDECIDED:
            return Grade.UNDECIDED
        case Says.CRASHED:
            return Grade.CRASHED


def _is_exact(place: Place, guilty: Guilty) -> bool:
    return (
        _is_guilty_op(place, guilty)
        and fnmatchcase(place.module, guilty.module)
        and (not guilty.ranks or place.ranks == guilty.ranks)
        and (guilty.step is None or place.step == guilty.step)
    )


def _is_near(place: Place, guilty: Guilty) -> bool:
    if guilty.module != "*" and fnmatchcase(place.module, guilty.module):
        return True
    if _is_guilty_op(place, guilty) and guilty.module == "*":
        return True
    words = (plain(place.op), place.module, place.value)
    return any(fnmatchcase(word, pattern) for word in words if word for pattern in guilty.near)


def _is_guilty_op(place: Place, guilty: Guilty) -> bool:
    last = place.value.rpartition(".")[2]  # training.state_before is state_before
    words = [word for word in (plain(place.op), place.value, last) if word]
    return any(fnmatchcase(word, pattern) for word in words for pattern in guilty.ops)


def plain(op: str) -> str:
    """`aten.add_.Tensor` and `Tensor.add_` are `add`; `SGD.step` is `step`."""
    words = re.sub(r"^(torch\.ops\.)?(aten|prims|c10d|_c10d_functional)(\.|::)", "", op).split(".")
    name = words[-1] if words[0][:1].isupper() else words[0]
    return name.split("#")[0].strip("_")
