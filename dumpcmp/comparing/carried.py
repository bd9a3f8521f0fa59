"""Knows values again that both sides were given in a step, and had in the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.arithmetic import gives_memory
from dumpcmp.nouns.row import Pair, PairedBy

TwoDigests = tuple[tuple[str, ...], tuple[str, ...]]  # of both sides, of all ranks


def two_digests(pair: Pair, golden: Listing, target: Listing) -> TwoDigests | None:
    """What the bytes of both sides are known by; None where they are not, or are the same."""
    if pair.golden is None or pair.target is None:
        return None
    ours, theirs = golden.values[pair.golden], target.values[pair.target]
    found = tuple(one.digest for one in ours), tuple(one.digest for one in theirs)
    return found if all(map(all, found)) and found[0] != found[1] else None


@dataclass(slots=True, eq=False)
class Carried:
    """The values that differ, while a comparison goes through the steps.

    What one step leaves, such as a cache, the next one is given, and a weight is the same in all.
    Links stay within a step: that these are the same two values, their bytes tell.
    """

    _weights: dict[TwoDigests, Pair] = field(default_factory=dict)
    _steps: dict[str, _TwoSteps] = field(default_factory=dict)  # by model

    def again(self, pairs: Sequence[Pair], golden: Listing, target: Listing) -> dict[Pair, Pair]:
        """What steps were given, by what it was before; `pairs` are in order of execution."""
        found: dict[Pair, Pair] = {}
        for pair in pairs:
            digests = two_digests(pair, golden, target)
            if digests is None or pair.golden is None or not _is_judged(pair):
                continue
            steps = self._steps.setdefault(pair.key.model, _TwoSteps())
            steps.go_to(pair.key.step)
            before = self._weights.get(digests) or steps.before.get(digests)
            if before is not None and _is_given(pair, golden) and before.key.step < pair.key.step:
                found[pair] = before
            steps.now.setdefault(digests, pair)
            if golden.first(pair.golden).slot.is_weight:
                self._weights.setdefault(digests, pair)
        return found


@dataclass(slots=True, eq=False)
class _TwoSteps:
    """What differs in a step of a model, and in the one before it."""

    number: int = -1
    now: dict[TwoDigests, Pair] = field(default_factory=dict)
    before: dict[TwoDigests, Pair] = field(default_factory=dict)

    def go_to(self, step: int) -> None:
        if step > self.number:
            self.number, self.before, self.now = step, self.now, {}


def _is_judged(pair: Pair) -> bool:
    """Whether its numbers are judged: neither moved by a collective nor memory as it was found."""
    is_found = pair.unwritten or (pair.key.slot.is_output and gives_memory(pair.key.op))
    return pair.by is not PairedBy.COLLECTIVE and not is_found


def _is_given(pair: Pair, golden: Listing) -> bool:
    """Whether golden has it from outside of the step."""
    slot = pair.key.slot
    is_linked = pair.golden is not None and pair.golden in golden.links
    return (slot.is_input or slot.is_weight) and not is_linked
