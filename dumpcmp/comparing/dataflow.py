"""The data flow of two runs, pair by pair: what each value was computed from, or is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.taping import Tape, plan_gradient
from dumpcmp.nouns.effects import Effect, parameters_kept
from dumpcmp.nouns.key import ROOT, Key, Op, Site, Slot
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

    def _drawn_for(self, pair: Pair) -> Iterator[Pair]:
        """The generators that a dropout drew from, which is run again with what it has drawn.

        Others that draw are not run again; a recurrent layer tells of a generator in any case.
        """
        if "dropout" in pair.key.op.function:
            yield from (one for one in self.calls[pair.key.site] if one.key.slot.is_generator)

    @cached_property
    def sources(self) -> dict[Pair, tuple[Pair, ...]]:
        """What each value was computed from, or the earlier appearance of it."""
        return {pair: tuple(dict.fromkeys(self._sources(pair))) for pair in self.pairs}

    @cached_property
    def tape(self) -> Tape:
        """Golden's backward pass."""
        return Tape(self.golden)

    def _behind(self, gradient: Pair) -> Iterator[Pair]:
        """What a gradient was computed from: in both passes, or the model's results by a loss."""
        if gradient.golden is None:
            yield from (p for p in self.calls[gradient.key.site] if not p.key.slot.is_gradient)
            return
        plan = plan_gradient(self.tape, gradient.golden, lambda _: True)
        yield from (self.ours[key] for key in plan.sources)
        if plan.unknown:
            root = gradient.golden.site._replace(op=Op(ROOT), call=0)
            yield from (p for p in self.calls.get(root, ()) if p.key.slot.is_output)

    def _sources(self, pair: Pair) -> Iterator[Pair]:
        yield from (source for source in self.taken_from(pair) if source is not None)
        slot = pair.key.slot
        if slot.is_gradient:
            yield from (source for source in self._behind(pair) if source is not pair)
        elif pair.key.op == Effect.OPTIMIZER.op and pair.golden is not None:
            yield from self._summed_in(pair.golden)
        elif not slot.is_input:
            yield from self.given_to(pair)
            yield from self._drawn_for(pair) if slot.is_output else ()
        elif slot.is_weight and pair.golden is not None:
            yield from self._written_from(pair.golden)

    def _summed_in(self, kept: Key) -> Iterator[Pair]:
        """The gradients of which an optimizer made what it keeps of a parameter, step by step."""
        for op, slot in parameters_kept(kept):
            weights = self._weights.get((kept.model, op, slot), ())
            for step in range(kept.step + 1) if weights else ():
                gradient = self.ours.get(Site(kept.model, step, op, 0).key(f"grad.{slot.name}"))
                yield from self._taken(gradient)
            if weights:
                return

    def _taken(self, gradient: Pair | None) -> Iterator[Pair]:
        if gradient is not None:
            yield gradient

    def _written_from(self, weight: Key) -> Iterator[Pair]:
        """What an optimizer, or a batch norm, made a weight of that is recorded again.

        It is the latest value of it, its gradients since, and what its module was given since.
        """
        name = weight.model, weight.op, weight.slot
        earlier = [pair for pair in self._weights.get(name, ()) if pair.key.step < weight.step]
        if not earlier:
            return
        yield earlier[-1]
        for step in range(earlier[-1].key.step, weight.step):
            site = Site(weight.model, step, weight.op, 0)
            gradient = self.ours.get(site.key(f"grad.{weight.slot.name}"))
            yield from self._taken(gradient)
            if weight.slot.kind == "buffer":
                given = (pair for pair in self.calls.get(site, ()) if pair.key.slot.kind == "input")
                yield from given

    @cached_property
    def _weights(self) -> dict[tuple[str, Op, Slot], list[Pair]]:
        """The pairs of each of golden's weights, in the order of steps."""
        found: dict[tuple[str, Op, Slot], list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            if pair.both and pair.golden is not None and pair.golden.slot.is_weight:
                found[pair.golden.model, pair.golden.op, pair.golden.slot].append(pair)
        return dict(found)


def _by_key(items: Iterator[tuple[Key | None, Pair]]) -> dict[Key, Pair]:
    found: dict[Key, Pair] = {}
    for key, pair in items:
        if key is not None and (key not in found or (pair.both and not found[key].both)):
            found[key] = pair
    return found
