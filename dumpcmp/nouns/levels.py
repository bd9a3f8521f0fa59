"""The levels that a program rounds numbers to when it quantises them, and what stands on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Spacing(StrEnum):
    """How levels stand to each other."""

    EVEN = "even"  # multiples of a step, of integers
    LISTED = "listed"  # anywhere, in a table of so many
    FLOATING = "floating"  # multiples of powers of two, of short floats


@dataclass(frozen=True, slots=True)
class Levels:
    """What quantised numbers are rounded to, in groups that have a scale each."""

    name: str  # as --allow takes it
    count: int  # levels; of short floats those between a power of two and the next
    half: float  # how far the nearest may be, of the largest number of a group
    share: float  # and of the number itself: levels of floats, and scales that are rounded
    spacing: Spacing = Spacing.EVEN
    factor: str = ""  # what products with such weights may round the other factor to
    table: tuple[float, ...] = ()  # the levels, where they are listed, of the largest number


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was found of a tensor that stands on levels, beside the one that was rounded to them."""

    levels: Levels
    group: str  # "each row", "groups of 64", "the whole"
    rel_l2: float  # between the two
    gain: float  # by how much it is the larger one on the whole
    chance: float  # what such a gain may be by chance

    @property
    def said(self) -> str:
        """The same as a sentence."""
        return f"golden's to the nearest level of {self.levels.name}, a scale for {self.group}"
