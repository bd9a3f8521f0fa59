"""Constants that stand in one place and are different ones, as their numbers and takers tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.given import CallInputs, read_arguments
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.op_names import OpSet, canonical

_FILLED = OpSet("as_tensor full full_like new_full new_tensor tensor")


@dataclass(frozen=True)
class Constants:
    """The constants of two runs that are made of one number each."""

    golden: Listing
    target: Listing

    def are_others(self, golden: Site, target: Site) -> bool:
        """Whether two calls of one name make different constants, one of which has its partner.

        They are of different numbers, no function takes both, and one of the numbers comes as
        often on either side: what golden fills with, the target may have as a tensor.
        """
        if golden.op.function not in _FILLED or target.op.function not in _FILLED:
            return False
        ours, theirs = self._ours.number(golden), self._theirs.number(target)
        if ours is None or theirs is None or ours == theirs:
            return False
        takers = self._ours.takers(golden), self._theirs.takers(target)
        if not all(takers) or takers[0] & takers[1]:
            return False
        here, there = self._ours.numbers[golden[:2]], self._theirs.numbers[target[:2]]
        return any(here[number] == there[number] for number in (ours, theirs))

    @cached_property
    def _ours(self) -> _NumbersOfRun:
        return _NumbersOfRun(self.golden)

    @cached_property
    def _theirs(self) -> _NumbersOfRun:
        return _NumbersOfRun(self.target)


@dataclass(frozen=True)
class _NumbersOfRun:
    """The numbers that the calls of a run are given, and who takes what is made of them."""

    listing: Listing

    def number(self, site: Site) -> float | None:
        """What a constant is filled with; None where that is not one float."""
        call = self.listing.calls.get(site)
        given = read_arguments(call.arguments) if call else None
        floats = [] if given is None else list(_floats(given))
        return floats[0] if len(floats) == 1 else None

    def takers(self, site: Site) -> set[str]:
        """The functions that are given what the call gives out."""
        return self._takers.get(site.key("output.0"), set())

    @cached_property
    def numbers(self) -> Mapping[tuple[str, int], Counter[float]]:
        """How often the calls of each step of a model are given each number."""
        found: dict[tuple[str, int], Counter[float]] = defaultdict(Counter)
        for site, call in self.listing.calls.items():
            given = None if site.op.is_module else read_arguments(call.arguments)
            found[site[:2]].update(() if given is None else _floats(given))
        return found

    @cached_property
    def _takers(self) -> Mapping[Key, set[str]]:
        found: dict[Key, set[str]] = defaultdict(set)
        for key, first in self.listing.links.items():
            if key.slot.is_input and not key.op.is_module:
                found[first].add(canonical(key.op.function))
        return found


def _floats(given: CallInputs) -> Iterator[float]:
    """The floats among the arguments, in lists, too."""
    waiting: list[Any] = [*given.args, *given.kwargs.values()]
    while waiting:
        value = waiting.pop()
        if type(value) is float:
            yield value
        elif isinstance(value, tuple):
            waiting += value
