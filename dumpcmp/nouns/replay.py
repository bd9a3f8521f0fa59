"""What running an op again told of it: the Replay, the Choice of an op that chooses, the Origin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Origin(StrEnum):
    """Where the difference between the two sides of a value comes from."""

    UNKNOWN = "unknown"  # the op could not be run again
    EQUAL = "equal"  # there is none: the bits are the same
    INTRODUCED = "introduced"  # the op did something wrong with what it was given
    INHERITED = "inherited"  # the op is right: what it was given differs
    AMPLIFIED = "amplified"  # the same, and the difference grew in it
    FLIPPED = "flipped"  # an op before it, or itself, chose otherwise, and rightly so


@dataclass(frozen=True, slots=True)
class Flip:
    """One row in which the target chose otherwise than golden."""

    row: tuple[int, ...]  # index of the row: the dims of the scores without the one chosen from
    golden: tuple[int, ...]  # what golden chose there and the target did not
    target: tuple[int, ...]  # what the target chose there and golden did not
    margin: float  # how far apart golden's scores of the two are
    noise: float  # how far apart both sides' scores are in that row

    @property
    def is_tie(self) -> bool:
        """Whether the scores are equal, so that no choice is more right than the other."""
        return self.margin == 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What an op that chooses (topk, sort, argmax, ...) chose, and whether it may."""

    wrong: str = ""  # why it is no right choice for the scores that were given; empty where it is
    num_rows: int = 0  # rows that were chosen in
    num_flipped: int = 0  # rows in which the sides chose otherwise
    flips: tuple[Flip, ...] = ()  # the first few of them, the least explained first
    only_follows: bool = False  # it chose from integers that were others already: no decision

    @property
    def decides(self) -> bool:
        """Whether the sides chose otherwise here, and not only before."""
        return bool(self.num_flipped) and not self.only_follows

    @property
    def agreement(self) -> float:
        """The share of rows in which both sides chose the same."""
        return 1 - self.num_flipped / self.num_rows if self.num_rows else 1.0


class Replay(NamedTuple):
    """What the target gave out, held against golden's op in float64 on what the target was given.

    Numbers and no opinion; errors are relative to the norm of what the replay gave. A value that
    could not be replayed has `unknown` and nothing else.
    """

    unknown: str = ""  # why the op could not be run again
    eps: float = 0.0  # the rounding of the dtype that the target gave out
    introduced: float = math.nan  # rel_l2 of what the target gave out
    worst_row: float = math.nan  # of rows: |difference| / (|row| + mean of |rows|)
    worst_element: float = math.nan  # |difference| / (|element| + rms, or the terms of its sum)
    gain: float = math.nan  # the target is (1 + gain) times the replay, plus what is unlike it
    offset: float = math.nan  # mean difference over the rms of the replay
    count: int = 0  # type: ignore[assignment]  # elements
    num_weighty: float = 0.0  # so many of equal size would weigh as much as these do
    condition: float = 1.0  # how much larger the terms of the op's sums are than its output
    shortcut: float = 0.0  # what a declared shortcut in arithmetic rounds, of each term
    noise: float = 0.0  # the error of the same ops in the dtype of the run: of scans and regions
    row_noise: float = 0.0  # of the row in which that is largest, as `worst_row` has it
    element_noise: float = 0.0  # of the element in which it is, as `worst_element` has it
    inherited: float = math.nan  # rel_l2 of the replay against one on what golden was given
    amplification: float = math.nan  # `inherited` over the rel_l2 of what was given
    nonfinite_agree: bool = True  # NaN and the infinities are where the replay has them
    is_exact: bool = False  # the op only moves or casts: every bit is known
    is_nearest: bool = False  # it computes once and rounds once: one result is the nearest
    is_either: bool = False  # a number may have been rounded to the dtype of a tensor first, or not
    mismatched: int = 0  # elements that are not as they must be, of an op that is either
    num_ops: int = 1  # golden's ops that were run: several for a region, none for an optimizer
    leeway: float = 0.0  # of a product of rounded factors: how far its gain and offset may be off
    levels: str = ""  # of what was rounded to declared levels, and is right for that: to which
    factors: float = 0.0  # of a product: what factors make of it that were rounded to such levels
    columns: float = 0.0  # of the same: how much more its columns are scaled than by such rounding
    choice: Choice | None = None  # of an op that chooses
    blamed: tuple[str, ...] = ()  # of a wrong gradient: the calls whose parts of it may be, by Site

    @property
    def is_known(self) -> bool:
        """Whether the op could be run again."""
        return not self.unknown
