"""What was computed from the values that only one side has: whether they matter is seen there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from dumpcmp.align.flow import shows_first
from dumpcmp.align.letters import Letters
from dumpcmp.align.listing import Listing
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import ROOT, Key, Op, Site
from dumpcmp.nouns.op_names import writes_in_place
from dumpcmp.nouns.row import Following, Pair, PairedBy

_HOLDING = (Effect.RESULT.op, Effect.YIELDED.op)  # what the root returns in an object is theirs
_FIRST, _OUT = "input.0", "input.out"  # where a call has what it writes to, or shows


def followers(
    pairs: Sequence[Pair],
    golden: Listing,
    target: Listing,
    unsolved: Callable[[Pair], bool] = lambda _: False,
) -> Following:
    """For each value that one side alone has, the values that were made of it there at once.

    So also of one that both have and that nobody could put together from its shards (`unsolved`),
    on either side, and of what a collective only moves. What a run gives out at its end, and what
    was taken by a call whose outputs are not recorded, is an end: nothing after it can tell. Where
    a call takes the value and has a partner, both sides have it. What golden alone writes into
    memory that its step did not make is `left` to later steps, and to the program, as is what one
    side alone returns in an object, such as a cache.
    """
    ours = _Side(golden, _by_key((pair.golden, pair) for pair in pairs))
    theirs = _Side(target, _by_key((pair.target, pair) for pair in pairs))
    found: dict[Pair, list[Pair]] = {}
    taken: dict[Pair, list[Pair]] = {}
    ends = set()
    for pair in pairs:
        if pair.both and pair.by is not PairedBy.COLLECTIVE and not unsolved(pair):
            continue
        found[pair] = []
        for side, key in ((ours, pair.golden), (theirs, pair.target)):
            if key is None:
                continue
            shown = [one for one in side.shown(key) if one.both]
            if not pair.both:
                taken[pair] = shown
            elif side is theirs and _is_share(key, target):  # of what golden has there, too
                first = golden.first(pair.golden) if pair.golden else None
                taken[pair] = [o for o in shown if o.golden and golden.first(o.golden) == first]
            after = side.after(key)
            made = (side.pairs[other] for other in after or () if other in side.pairs)
            found[pair] += [other for other in made if other is not pair]
            if after is None or side.is_end(key):
                ends.add(pair)
    left = {
        one for one in found if not one.both
        and ((one.golden and ours.leaves_behind(one.golden)) or theirs.holds(one.target)
             or ours.holds(one.golden))
    }  # fmt: skip
    return Following(found, frozenset(ends), taken, frozenset(left))


def _is_share(key: Key, listing: Listing) -> bool:
    """Whether some ranks alone take their share of an earlier value, which others have, too."""
    origin = listing.links.get(key)
    ranks, others = ({r.rank for r in listing.values.get(k, ())} for k in (key, origin or key))
    return ranks < others and not key.slot.is_gradient


def _by_key(items: Iterable[tuple[Key | None, Pair]]) -> dict[Key, Pair]:
    """The pair that each value is in; of several, none that only says who moved it."""
    found: dict[Key, Pair] = {}
    for key, pair in items:
        if key is not None and (key not in found or pair.by is not PairedBy.COLLECTIVE):
            found[key] = pair
    return found


class _Side:
    """The values of one run by where they appear, and the calls that took them."""

    def __init__(self, listing: Listing, pairs: dict[Key, Pair]) -> None:
        self.listing, self.pairs, self.letters = listing, pairs, Letters.of(listing)
        self.appearances: dict[Key, list[Key]] = defaultdict(list)
        for key, records in listing.values.items():
            for first in dict.fromkeys(record.same_as or key for record in records):
                self.appearances[first].append(key)  # ranks may have it from different calls
        self.kernels: dict[tuple[str, int, str], list[Key]] = defaultdict(list)
        for key in listing.values:
            call = listing.call(key) if key.slot.is_output else None
            if call is not None and call.kernel and not call.is_removed:
                self.kernels[key.model, key.step, call.kernel].append(key)
        self.laps: dict[Site, list[Key]] = defaultdict(list)  # what later laps gave, by their calls
        for key, records in listing.values.items():
            for record in records if key.slot.is_output else ():
                if record.key is not key and record.key.site != key.site:
                    self.laps[record.key.site].append(key)
        self.results: dict[tuple[str, int], list[Key]] = defaultdict(list)
        for key in listing.values:
            if key.op == ROOT and key.slot.is_output:
                self.results[key.model, key.step].append(key)
        self.whole_steps = {(s.model, s.step) for s in listing.sites if s.op == ROOT}

    def is_end(self, key: Key) -> bool:
        """Whether the run gives the value out, and nothing of the run comes after."""
        if (key.model, key.step) not in self.whole_steps:
            return True  # only a part was recorded: who knows what else took it
        slot = key.slot
        given = slot.is_output or slot.kind == "grad_input"
        return slot.is_parameter_gradient or (key.op == ROOT and given)

    def holds(self, key: Key | None) -> bool:
        """Whether an object that the root returned holds the value."""
        return key is not None and any(
            other.op in _HOLDING for other in self.appearances[self.listing.first(key)]
        )

    def leaves_behind(self, key: Key) -> bool:
        """Whether a value is written into memory that the step did not make.

        It is a parameter's, a buffer's, what the model was given, or what a module keeps besides.
        """
        if not key.slot.is_output or self._written(key.site) is None:
            return False
        while key.slot.is_output and not key.op.is_module:
            given = self._written(key.site)
            if given is None and shows_first(self.listing, key.site):
                given = key.site.key(_FIRST)
            if given is None or given not in self.listing.values:
                return False
            key = self.listing.first(given)
        return key.slot.is_input

    def _written(self, site: Site) -> Key | None:
        """What a call writes to, and gives out."""
        call = self.listing.calls.get(site)
        if call is None:
            return None
        if (out := site.key(_OUT)) in self.listing.values:
            return out
        return site.key(_FIRST) if writes_in_place(call.target) else None

    def shown(self, key: Key) -> Iterator[Pair]:
        """The pairs in which the value of `key` appears once more."""
        for other in self.appearances[self.listing.first(key)]:
            if other != key and other in self.pairs:
                yield self.pairs[other]

    def after(self, key: Key) -> list[Key] | None:
        """The values made of `key` at once; None where what was made of it is not recorded.

        What was sent to another rank goes on there.
        """
        found = self.letters.delivered(self.listing.values.get(key, ()))
        for other in self.appearances[self.listing.first(key)]:
            found += [other] if other != key else []
            made = self._made(other)
            if made is None:
                return None
            found += made
        return found

    def _made(self, key: Key) -> Iterable[Key] | None:
        """What the call of an appearance makes of the value there."""
        site, slot = key.site, key.slot
        if slot.is_gradient:
            return self._gradients_made(site) if slot.kind == "grad_output" else ()
        if not slot.is_input or site.op.is_module:
            return ()
        made = [other for other in self.listing.sites[site] if other.slot.is_output]
        made = made or self.laps.get(site) or self._stored(site) or self._given_out(site)
        return made or self.letters.delivered(self.listing.values[key]) or None

    def _stored(self, site: Site) -> list[Key]:
        """What the kernel of a compiled call stores, where the call itself stores nothing."""
        call = self.listing.calls.get(site)
        return self.kernels.get((site.model, site.step, call.kernel), []) if call else []

    def _given_out(self, site: Site) -> list[Key]:
        """What the step gives out at its end, where a compiler folded a call into others.

        Nobody knows into which: whatever came of the call is in there, or in nothing.
        """
        call = self.listing.calls.get(site)
        return self.results.get((site.model, site.step), []) if call and call.is_removed else []

    def _gradients_made(self, site: Site) -> Iterable[Key]:
        holder = site._replace(op=Op(site.op.module), call=0)
        own = [key for key in self.listing.sites[site] if key.slot.kind == "grad_input"]
        weights = self.listing.sites.get(holder, ())
        return [*own, *(key for key in weights if key.slot.is_parameter_gradient)]
