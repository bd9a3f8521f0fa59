"""The laps of a loop as shards of one: calls by name, loops, and a listing whose laps are one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter

from dumpcmp.align.listing import Listing
from dumpcmp.align.renaming import unwrapped
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import CARRIED, LAP, Coordinate, Layout
from dumpcmp.nouns.record import Record

OpName = tuple[str, int, str]  # model, step, and the op, in whichever call of its module
NamedCalls = Mapping[OpName, Sequence[Site]]
Lapped = Mapping[Site, tuple[Site, int]]  # a call -> the first lap's call that it is, its own lap
LapSpan = tuple[int, int]  # orders of the first and the last call


def op_name(site: Site) -> OpName:
    """What a call is called whichever call of its op it is, and whatever wraps its module."""
    return site.model, site.step, unwrapped(site.op).plain


def calls_by_name(sites: Iterable[Site]) -> dict[OpName, list[Site]]:
    """The calls of each op, in order of execution; what autograd runs it runs backwards."""
    found: dict[OpName, list[Site]] = defaultdict(list)
    for site in sites:
        if not site.op.function.startswith("backward."):
            found[op_name(site)].append(site)
    return found


@dataclass
class Loop:
    """Laps, each from its first call to its last."""

    where: tuple[str, int]  # model and step
    spans: list[LapSpan]
    num_functions: int = 0

    def takes(self, spans: Sequence[LapSpan]) -> bool:
        """Take in the calls of another op where they lie in the same laps; whether they do."""
        both = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(self.spans, spans, strict=True)]
        apart = all(this[1] < after[0] for this, after in pairwise(both))
        if apart:
            self.spans = both
        return apart


def order_of(listing: Listing, site: Site) -> int:
    """When a call ran."""
    keys = listing.sites[site]
    return listing.record(keys[0]).order if keys else listing.calls[site].order


def lines_of(listing: Listing, sites: Sequence[Site]) -> list[str]:
    """The lines of code that calls stand in; empty where that is not known."""
    calls = [listing.calls.get(site) for site in sites]
    return [call.source if call else "" for call in calls]


def span_of(listing: Listing, sites: Sequence[Site]) -> LapSpan:
    """When the first and the last of some calls ran."""
    return order_of(listing, sites[0]), order_of(listing, sites[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The calls of one step in the order in which they ran."""

    orders: list[int]
    calls: list[tuple[str, Site]]  # the op that each is a call of, and the call

    def between(self, first: int, last: int) -> Iterator[tuple[int, str, Site]]:
        """The calls that ran from `first` to `last`, and when."""
        for at in range(bisect_left(self.orders, first), bisect_right(self.orders, last)):
            yield self.orders[at], *self.calls[at]


def timelines(listing: Listing, ours: NamedCalls) -> dict[tuple[str, int], Timeline]:
    """The calls of each model and step."""
    found: dict[tuple[str, int], list[tuple[int, str, Site]]] = defaultdict(list)
    for (model, step, op), sites in ours.items():
        found[model, step] += [(order_of(listing, site), op, site) for site in sites]
    lines = {where: sorted(calls, key=itemgetter(0)) for where, calls in found.items()}
    return {
        where: Timeline([order for order, *_ in calls], [(op, site) for _, op, site in calls])
        for where, calls in lines.items()
    }


def calls_in(timeline: Timeline, loop: Loop) -> dict[Site, tuple[Site, int]]:
    """The calls in a loop: each with the first lap's call that it is, and its own lap.

    What does not run as often in every lap is no part of the loop.
    """
    starts = [first for first, _ in loop.spans]
    named: dict[str, list[list[Site]]] = {}
    for order, op, site in timeline.between(loop.spans[0][0], loop.spans[-1][1]):
        laps = named.setdefault(op, [[] for _ in loop.spans])
        laps[bisect_right(starts, order) - 1].append(site)
    found: dict[Site, tuple[Site, int]] = {}
    for laps in named.values():
        if len({len(lap) for lap in laps}) == 1:
            for number, calls in enumerate(laps):
                mates = zip(calls, laps[0], strict=True)
                found |= {site: (first, number) for site, first in mates}
    return found


@dataclass
class Merging:
    """A listing whose laps become one."""

    listing: Listing
    num: int
    laps: Lapped
    firsts: dict[Key, Key] = field(default_factory=dict)  # of values of other laps: the first lap's

    def merged(self) -> Listing:
        """The listing with the values of all laps under the names of the first."""
        for key in self.listing.values:
            self._join([site.key(key.slot) for site in self.mates.get(key.site, ())])
        self._join_ends()
        calls = {site: call for site, call in self.listing.calls.items() if self._stays(site)}
        return replace(self.listing, values=dict(self._values()), calls=calls)

    def _values(self) -> Iterator[tuple[Key, tuple[Record, ...]]]:
        """The values, each with the shards of all laps in their order; gradients come backwards."""
        shards: dict[Key, list[Record]] = defaultdict(list)
        for key, first in self.firsts.items():
            shards[first] += self.listing.values[key]
        for key, records in self.listing.values.items():
            first = self.firsts.get(key, key)
            if first in shards:
                yield first, tuple(self._shards(shards.pop(first)))
            elif key not in self.firsts:
                yield key, tuple(map(self._linked, records))

    @cached_property
    def mates(self) -> dict[Site, list[Site]]:
        """The calls of all laps, by the first lap's."""
        found: dict[Site, list[Site]] = defaultdict(list)
        for site, (first, _) in self.laps.items():
            found[first].append(site)
        return found

    def _join(self, keys: Sequence[Key]) -> None:
        """Let values be shards of one, the first; a weight that is told of once stays alone."""
        is_there = len(keys) == self.num and all(key in self.listing.values for key in keys)
        if is_there:
            self.firsts |= dict.fromkeys(keys, keys[0])

    def _join_ends(self) -> None:
        """Join what was cut before the loop, one part for each lap, and what is put together."""
        cut: dict[Key, list[Key]] = defaultdict(list)
        put: dict[tuple[Site, Key], list[Key]] = defaultdict(list)
        for key, (record, *_) in self.listing.values.items():
            source = record.same_as
            if source is None:
                continue
            if key.site in self.laps and source.site not in self.laps and source.slot.is_output:
                cut[self.firsts.get(key, key)].append(source)
            elif key.site not in self.laps and key.slot.is_input and source in self.firsts:
                put[key.site, self.firsts[source]].append(key)
        for keys in (*cut.values(), *put.values()):
            apart = len(set(keys)) == self.num and _are_ends(keys)
            if apart and not any(key in self.firsts for key in keys):
                ends = list(dict.fromkeys(keys))
                self._join(ends)
                self._join([key.site.key(key.slot.gradient) for key in ends])

    def _stays(self, site: Site) -> bool:
        """Whether the call has a name of its own, after which its values are called."""
        return site not in self.laps or self.laps[site][0] == site

    @cached_property
    def carried(self) -> set[Site]:
        """The first lap's calls that in later laps take what came from the lap before."""
        found: set[Site] = set()
        for key, (record, *_) in self.listing.values.items():
            source = record.same_as
            here = self.laps.get(key.site)
            there = self.laps.get(source.site) if source else None
            if not here or not there or not source or not key.slot.is_input:
                continue
            if source.slot.is_weight:  # every lap has it
                continue
            if there[1] < here[1] or there[0] in found:
                found.add(here[0])
        return found

    def _shards(self, records: Sequence[Record]) -> Iterator[Record]:
        is_carried = records[0].key.site in self.carried
        axis = CARRIED if is_carried else LAP
        for number, record in enumerate(records):
            place = Coordinate(axis, number, self.num, known=False)
            layout = str(Layout(coordinates=(place,)))
            yield replace(self._linked(record), layout=layout)

    def _linked(self, record: Record) -> Record:
        """`record` with its link to what its source is called now."""
        same = record.same_as
        return record if same is None else replace(record, same_as=self.firsts.get(same, same))


def _are_ends(keys: Sequence[Key]) -> bool:
    """Whether one call gave or took them, or as many calls of one op each one."""
    num = len({key.site for key in keys})
    return num == 1 or (num == len(set(keys)) and len({(k.op.plain, k.slot) for k in keys}) == 1)
