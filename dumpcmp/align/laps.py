"""Makes the laps of golden's loop one program, where each rank of the target runs one of them.

A whole model that fills the places of its experts shard by shard, or calls its experts one after
the other, runs in a loop what every rank of a partitioned run does once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from dumpcmp.align.listing import Listing
from dumpcmp.align.renaming import unwrapped
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import CARRIED, LAP, Coordinate, Layout
from dumpcmp.nouns.record import Record

_FEWEST = 2  # functions that run in each lap, before a loop is believed in

_OpName = tuple[str, int, str]  # model, step, and the op, in whichever call of its module
_Span = tuple[int, int]  # orders of the first and the last call
_Named = Mapping[_OpName, Sequence[Site]]


def in_laps(golden: Listing, target: Listing, terms: Mapping[Site, Site]) -> Listing:
    """`golden` with the laps of its loops as shards of one, as many as the target has ranks.

    `terms` are golden's names of the target's calls. Records keep their own keys.
    """
    num = target.num_ranks
    if golden.num_ranks > 1 or num == 1 or any(r[0].layout for r in golden.values.values()):
        return golden
    ours = _named(golden.sites)
    theirs = Counter(_name(site) for site in terms.values())
    laps: dict[Site, tuple[Site, int]] = {}
    for loop in _loops(golden, ours, theirs, num):
        laps |= _in_loop(golden, ours, loop)
    return _Merging(golden, num, laps).merged() if laps else golden


def _name(site: Site) -> _OpName:
    return site.model, site.step, unwrapped(site.op).plain


def _named(sites: Iterable[Site]) -> dict[_OpName, list[Site]]:
    """The calls of each op, in order of execution; what autograd runs it runs backwards."""
    found: dict[_OpName, list[Site]] = defaultdict(list)
    for site in sites:
        if not site.op.function.startswith("backward."):
            found[_name(site)].append(site)
    return found


@dataclass
class _Loop:
    """Laps, each from its first call to its last."""

    where: tuple[str, int]  # model and step
    spans: list[_Span]
    num_functions: int = 0

    def takes(self, spans: Sequence[_Span]) -> bool:
        """Take in the calls of another op where they lie in the same laps; whether they do."""
        both = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(self.spans, spans, strict=True)]
        apart = all(this[1] < after[0] for this, after in pairwise(both))
        if apart:
            self.spans = both
        return apart

    def lap_of(self, order: int) -> int | None:
        """The lap that a call belongs to; the last ends with the last call that is known."""
        if not self.spans[0][0] <= order <= self.spans[-1][1]:
            return None
        return max(n for n, (first, _) in enumerate(self.spans) if first <= order)


def _loops(
    golden: Listing, ours: _Named, theirs: Mapping[_OpName, int], num: int
) -> Iterator[_Loop]:
    """The loops of `num` laps, by the ops that ran `num` times as often as in the target."""
    found: dict[tuple[str, int], list[_Loop]] = defaultdict(list)
    for name, sites in ours.items():
        size = theirs.get(name, 0)
        if not size or len(sites) != num * size or not _are_mates(golden, sites, size):
            continue
        laps = [sites[n : n + size] for n in range(0, len(sites), size)]
        spans = [(_order(golden, lap[0]), _order(golden, lap[-1])) for lap in laps]
        here = found[name[:2]]
        if not here or spans[0][0] > here[-1].spans[-1][1]:
            here.append(_Loop(name[:2], spans))
        elif not here[-1].takes(spans):
            continue
        here[-1].num_functions += not sites[0].op.is_module
    for loops in found.values():
        yield from (loop for loop in loops if loop.num_functions >= _FEWEST)


def _are_mates(golden: Listing, sites: Sequence[Site], size: int) -> bool:
    """Whether calls that are `size` apart stand in one line of code."""
    calls = [golden.calls.get(site) for site in sites]
    lines = [call.source if call else "" for call in calls]
    known = all(lines) or sites[0].op.is_module
    return known and all(line == lines[n % size] for n, line in enumerate(lines))


def _order(golden: Listing, site: Site) -> int:
    keys = golden.sites[site]
    return golden.record(keys[0]).order if keys else golden.calls[site].order


def _in_loop(golden: Listing, ours: _Named, loop: _Loop) -> dict[Site, tuple[Site, int]]:
    """The calls in a loop: each with the first lap's call that it is, and its own lap.

    What does not run as often in every lap is no part of the loop.
    """
    found: dict[Site, tuple[Site, int]] = {}
    for name, sites in ours.items():
        if name[:2] != loop.where:
            continue
        laps: list[list[Site]] = [[] for _ in loop.spans]
        for site in sites:
            lap = loop.lap_of(_order(golden, site))
            if lap is not None:
                laps[lap].append(site)
        if len({len(lap) for lap in laps}) == 1:
            for number, calls in enumerate(laps):
                mates = zip(calls, laps[0], strict=True)
                found |= {site: (first, number) for site, first in mates}
    return found


@dataclass
class _Merging:
    """A listing whose laps become one."""

    golden: Listing
    num: int
    laps: Mapping[Site, tuple[Site, int]]
    firsts: dict[Key, Key] = field(default_factory=dict)  # of values of other laps: the first lap's

    def merged(self) -> Listing:
        """The listing with the values of all laps under the names of the first."""
        for key in self.golden.values:
            self._join([site.key(key.slot) for site in self.mates.get(key.site, ())])
        self._join_ends()
        values: dict[Key, list[Record]] = defaultdict(list)
        for key, records in self.golden.values.items():
            values[self.firsts.get(key, key)] += records
        calls = {site: call for site, call in self.golden.calls.items() if self._stays(site)}
        found = {key: tuple(self._shards(records)) for key, records in values.items()}
        return replace(self.golden, values=found, calls=calls)

    @cached_property
    def mates(self) -> dict[Site, list[Site]]:
        """The calls of all laps, by the first lap's."""
        found: dict[Site, list[Site]] = defaultdict(list)
        for site, (first, _) in self.laps.items():
            found[first].append(site)
        return found

    def _join(self, keys: Sequence[Key]) -> None:
        """Let values be shards of one, the first; a weight that is told of once stays alone."""
        if len(keys) == self.num and all(key in self.golden.values for key in keys):
            self.firsts |= dict.fromkeys(keys, keys[0])

    def _join_ends(self) -> None:
        """Join what was cut before the loop, one part for each lap, and what is put together."""
        cut: dict[Key, list[Key]] = defaultdict(list)
        put: dict[tuple[Site, Key], list[Key]] = defaultdict(list)
        for key, (record, *_) in self.golden.values.items():
            source = record.same_as
            if source is None:
                continue
            if key.site in self.laps and source.site not in self.laps and source.slot.is_output:
                cut[self.firsts.get(key, key)].append(source)
            elif key.site not in self.laps and key.slot.is_input and source in self.firsts:
                put[key.site, self.firsts[source]].append(key)
        for keys in (*cut.values(), *put.values()):
            apart = len(set(keys)) == self.num and len({key.site for key in keys}) == 1
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
        for key, (record, *_) in self.golden.values.items():
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
        for number, record in enumerate(records):
            same = record.same_as
            linked = replace(record, same_as=self.firsts.get(same, same) if same else None)
            if len(records) < self.num:
                yield linked
                continue
            axis = CARRIED if records[0].key.site in self.carried else LAP
            place = Coordinate(axis, number, self.num, known=False)
            yield replace(linked, layout=str(Layout(coordinates=(place,))))
