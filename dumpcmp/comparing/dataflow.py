"""The data flow of two runs, pair by pair: what each value was computed from, or is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Pair


@dataclass(frozen=True)
class DataFlow:
    """The pairs of a comparison, found by the values and the calls of either run."""

    pairs: Sequence[Pair]
    golden: Listing
    target: Listing

    @cached_property
    def ours(self) -> dict[Key, Pair]:
        """The pair that holds each of golden's values, one with a partner if there is one."""
        return _by_key((pair.golden, pair) for pair in self.pairs)

    @cached_property
    def theirs(self) -> dict[Key, Pair]:
        """The same of the target's values."""
        return _by_key((pair.target, pair) for pair in self.pairs)

    @cached_property
    def calls(self) -> dict[Site, list[Pair]]:
        """The pairs of each of golden's calls; of a call that golden lacks, the target's."""
        found: dict[Site, list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            found[pair.key.site].append(pair)
        return dict(found)

    def taken_from(self, pair: Pair) -> tuple[Pair | None, Pair | None]:
        """The earlier pairs that hold this value, as golden's and as the target's links tell."""
        before = self.golden.links.get(pair.golden) if pair.golden else None
        beside = self.target.links.get(pair.target) if pair.target else None
        ours = self.ours.get(before) if before else None
        theirs = self.theirs.get(beside) if beside else None
        return (None if ours is pair else ours), (None if theirs is pair else theirs)

    def given_to(self, pair: Pair) -> list[Pair]:
        """What the call of `pair` was given in the forward pass."""
        return [other for other in self.calls[pair.key.site] if other.key.slot.is_input]

    @cached_property
    def sources(self) -> dict[Pair, tuple[Pair, ...]]:
        """What each value was computed from, or the earlier appearance of it."""
        return {pair: tuple(dict.fromkeys(self._sources(pair))) for pair in self.pairs}

    def _sources(self, pair: Pair) -> Iterator[Pair]:
        yield from (source for source in self.taken_from(pair) if source is not None)
        slot = pair.key.slot
        if slot.is_gradient:
            yield from (p for p in self.calls[pair.key.site] if p is not pair and _feeds(p, pair))
        elif not slot.is_input:
            yield from self.given_to(pair)


def _feeds(other: Pair, gradient: Pair) -> bool:
    """Whether the backward pass of their call computes `gradient` from `other`."""
    if gradient.key.slot.kind == "grad_output":
        return False
    return other.key.slot.is_input or other.key.slot.kind == "grad_output"


def _by_key(items: Iterator[tuple[Key | None, Pair]]) -> dict[Key, Pair]:
    found: dict[Key, Pair] = {}
    for key, pair in items:
        if key is not None and (key not in found or (pair.both and not found[key].both)):
            found[key] = pair
    return found
