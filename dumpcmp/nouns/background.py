"""What a report shows besides the rows: both runs, the data flow, closer looks at a few rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Profile = tuple[float, ...]  # the root mean square of the difference, index by index of a dim


class Hypothesis(NamedTuple):
    """What a difference looks like, and how much of it that explains."""

    name: str  # "scale", "rows shifted"
    said: str  # "mine is golden's times 1.01"
    fit: float  # share of the squared difference that is gone under it


class Element(NamedTuple):
    """One element of a value on both sides."""

    at: tuple[int, ...]  # its index
    golden: float
    target: float


class Histogram(NamedTuple):
    """How many elements differ by how much: one count for each span of log10 of the difference."""

    low: float  # log10 of the smallest difference that is not zero
    high: float
    counts: tuple[int, ...]
    num_equal: int  # elements that do not differ at all
    num_other: int = 0  # elements that are not finite on a side


@dataclass(frozen=True, slots=True)
class CloseUp:
    """Where in one tensor the difference lies."""

    row: int  # of the outcome
    shape: tuple[int, ...] = ()
    map_shape: tuple[int, int] = (0, 0)  # rows and columns that the value has as a matrix
    error_map: tuple[Profile, ...] = ()  # largest difference in each tile of that matrix
    histogram: Histogram | None = None
    worst: tuple[Element, ...] = ()
    profiles: tuple[Profile, ...] = ()  # one for each dim; long dims are cut into spans
    places: tuple[str, ...] = ()  # sentences on who holds the difference
    hypotheses: tuple[Hypothesis, ...] = ()
    problem: str = ""  # why there is no more than this


class Arrow(NamedTuple):
    """One value is an earlier one, or was computed from it; both are rows of the outcome."""

    row: int
    source: int
    side: str  # "both", "golden", "mine": in whose data flow


class Excerpt(NamedTuple):
    """A few lines of the program around a line of it, as its file is now."""

    source: str  # "model.py:31"
    first: int  # number of the first line
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunTold:
    """One run as a reader knows it: where it lies, and facts by their names."""

    path: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Background:
    """All that a report shows besides the rows and the remarks on them."""

    golden: RunTold = field(default_factory=RunTold)
    target: RunTold = field(default_factory=RunTold)
    arrows: tuple[Arrow, ...] = ()
    close_ups: tuple[CloseUp, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
