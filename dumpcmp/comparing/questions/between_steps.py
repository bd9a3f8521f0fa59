"""What later steps begin with: values of earlier ones, and what optimizers made of gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dumpcmp.nouns.effects import Effect, parameters_kept
from dumpcmp.nouns.key import Key, Op, Site, Slot
from dumpcmp.nouns.row import Pair


@dataclass(frozen=True)
class BetweenSteps:
    """The pairs of some steps, and what they have from others."""

    pairs: Sequence[Pair]
    again: Mapping[Pair, Pair] = field(default_factory=dict)  # what a step was given, by earlier
    clipped: Mapping[tuple[str, int], Pair] = field(default_factory=dict)

    def sources(self, pair: Pair) -> Iterator[Pair]:
        """What an optimizer, a batch norm or an earlier step made `pair` of."""
        if pair in self.again:
            yield self.again[pair]
        if pair.golden is None:
            return
        if pair.key.op == Effect.OPTIMIZER.op:
            yield from self._summed_in(pair.golden)
        elif pair.key.slot.is_weight:
            yield from self._written_from(pair.golden)

    @cached_property
    def _ours(self) -> dict[Key, Pair]:
        found: dict[Key, Pair] = {}
        for pair in self.pairs:
            key = pair.golden
            if key is not None and (key not in found or (pair.both and not found[key].both)):
                found[key] = pair
        return found

    def _summed_in(self, kept: Key) -> Iterator[Pair]:
        """The gradients of which an optimizer made what it keeps of a parameter, step by step."""
        for op, slot in parameters_kept(kept):
            weights = self._weights.get((kept.model, op, slot), ())
            for step in range(kept.step + 1) if weights else ():
                yield from self._gradient(Site(kept.model, step, op, 0), slot)
            if weights:
                return

    def _gradient(self, site: Site, slot: Slot) -> Iterator[Pair]:
        """A gradient as an optimizer took it: clipped by what others were as well."""
        gradient = self._ours.get(site.key(f"grad.{slot.name}"))
        if gradient is not None:
            yield gradient
            other = self.clipped.get((site.model, site.step))
            yield from () if other is None else (other,)

    def _written_from(self, weight: Key) -> Iterator[Pair]:
        """The latest value of a weight, its gradients since, and what its module was given."""
        name = weight.model, weight.op, weight.slot
        earlier = [pair for pair in self._weights.get(name, ()) if pair.key.step < weight.step]
        if not earlier:
            return
        yield earlier[-1]
        for step in range(earlier[-1].key.step, weight.step):
            site = Site(weight.model, step, weight.op, 0)
            yield from self._gradient(site, weight.slot)
            if weight.slot.kind == "buffer":
                yield from self._given.get(site, ())

    @cached_property
    def _given(self) -> dict[Site, list[Pair]]:
        found: dict[Site, list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            if pair.key.slot.kind == "input":
                found[pair.key.site].append(pair)
        return found

    @cached_property
    def _weights(self) -> dict[tuple[str, Op, Slot], list[Pair]]:
        """The pairs of each of golden's weights, in the order of steps."""
        found: dict[tuple[str, Op, Slot], list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            if pair.both and pair.golden is not None and pair.golden.slot.is_weight:
                found[pair.golden.model, pair.golden.op, pair.golden.slot].append(pair)
        return dict(found)
