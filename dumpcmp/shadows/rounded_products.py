"""Holds products against what factors explain that were rounded to declared levels out of sight."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from dumpcmp.judge.replaying import said_of_factors, wrong
from dumpcmp.judge.tolerances import QUANTISED, QUANTISED_GRADIENTS, REPLAY_CHANCE
from dumpcmp.nouns.levels import Levels
from dumpcmp.nouns.replay import Replay

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor

P = TypeVar("P", bound=Hashable)


class Factor(StrEnum):
    """What a product is made of, which decides what it may have been rounded to."""

    UNSEEN = "unseen"  # a weight that the target holds in a form of its own
    SEEN = "seen"
    GRADIENT = "gradient"  # what a backward pass is given
    ANCHORED = "anchored"  # what it was rounded to is known

    def levels(self, word: str) -> Levels | None:
        """Those that it may have been rounded to where `word` is declared."""
        levels = QUANTISED[word]
        if self is Factor.ANCHORED:
            return None
        if self is Factor.UNSEEN:
            return levels
        known = QUANTISED_GRADIENTS if self is Factor.GRADIENT else QUANTISED
        return known.get(levels.factor)


@dataclass(frozen=True, slots=True)
class Product(Generic[P]):
    """What a call made of what it was given, and how to run it again."""

    run: Callable[[Mapping[P, Tensor]], Tensor]
    given: Mapping[P, Tensor]
    known: Tensor  # what it makes of that
    got: Tensor

    def in_levels(
        self, factors: Mapping[P, Factor], words: tuple[str, ...], before: Replay
    ) -> Replay:
        """What is wrong with it if it rounded its factors to levels that go by one of `words`.

        Where every factor is seen, every digit of it is known.
        """
        replay = before
        taken = {place: factors[place] for place, each in self.given.items() if _is_factor(each)}
        for word in words if Factor.UNSEEN in taken.values() else ():
            levels = {place: each.levels(word) for place, each in taken.items()}
            replay = self._held({place: each for place, each in levels.items() if each}, before)
            if not wrong(replay):
                return replay._replace(levels=said_of_factors(word, replay))
        return replay

    def _held(self, levels: Mapping[P, Levels], before: Replay) -> Replay:
        from dumpcmp.replay.rounded_factors import error_of_product, rounded_product

        room = rounded_product(self.run, self.given, levels, self.known)
        nothing = {
            place: each.new_zeros(each.shape)
            for place, each in self.given.items()
            if place in levels
        }
        added = self.run({**self.given, **nothing})
        found = error_of_product(self.got, self.known, self.known - added)
        columns = found.columns / room.columns if room.columns else 0.0
        leeway = before.leeway + _by_columns(before, self.known.shape[-1])
        gain = max(before.gain, found.gain, key=abs)
        return before._replace(factors=room.whole, gain=gain, leeway=leeway, columns=columns)


def _is_factor(given: Tensor) -> bool:
    return given.is_floating_point() and given.ndim > 1


def _by_columns(replay: Replay, num_columns: int) -> float:
    """What a gain may be by chance where not each element but each column is off by itself."""
    error, many = REPLAY_CHANCE * replay.introduced, min(replay.num_weighty, replay.count)
    return max(0.0, error / math.sqrt(max(1, num_columns)) - error / math.sqrt(max(1.0, many)))
