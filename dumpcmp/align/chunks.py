"""Makes chunks whole: what one run puts through a loop and the other takes at once.

A feed-forward that is run over a part of the rows at a time, a loss over a part of the tokens, or
a batch that a model divides itself, give together what the whole gives. The laps of such a loop
are shards of one call, and so compared.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dumpcmp.align.listing import Listing
from dumpcmp.align.looping import (
    LapSpan,
    Loop,
    Merging,
    NamedCalls,
    OpName,
    Timeline,
    calls_by_name,
    calls_in,
    lines_of,
    order_of,
    span_of,
    timelines,
)
from dumpcmp.align.pieces import Extents, joined, stacked_along
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import CHUNK, parse_layout
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Cut, Pair, PairedBy

_Step = tuple[str, int]  # a model and a step
_Laps = Sequence[Sequence[Site]]  # the calls of an op that run in each lap


def in_chunks(
    golden: Listing, target: Listing, terms: Mapping[Site, Site]
) -> tuple[Listing, Listing]:
    """Both runs with the laps of their loops as shards of one, where the other has it in one.

    `terms` are golden's names of the target's calls. Records keep their own keys.
    """
    both = golden, target
    if any(side.num_ranks > 1 for side in both) or set(terms.values()) == golden.sites.keys():
        return both
    if any(records[0].layout for side in both for records in side.values.values()):
        return both
    ours = calls_by_name(golden.sites)
    theirs: dict[OpName, list[Site]] = defaultdict(list)
    for name, sites in calls_by_name(target.sites).items():
        theirs[(*terms[sites[0]][:2], name[2])] += sites
    one, other = _Search(golden, target, ours, theirs), _Search(target, golden, theirs, ours)
    return one.merged(), other.merged()


def beside_parts(pairs: Sequence[Pair], golden: Listing, target: Listing) -> Iterator[Pair]:
    """`pairs`; a chunk that is taken alone is beside the part of the whole that it is.

    One that is no part, such as a term of a sum, is beside nothing, nor is what was made of some
    chunks and of something else.
    """
    if not (_has_chunks(golden) or _has_chunks(target)):
        yield from pairs
        return
    parts = [(pair, _as_part(pair, golden, target)) for pair in pairs]
    placed = [part for _, part in parts if part is not None]
    ours, theirs = {pair.golden for pair in placed}, {pair.target for pair in placed}
    for pair, part in parts:
        if part is not None:
            yield part
            continue
        if pair.golden not in ours:
            ours.add(pair.golden)
            yield Pair(pair.golden, None)
        if pair.target not in theirs:
            theirs.add(pair.target)
            yield Pair(None, pair.target)


def _has_chunks(listing: Listing) -> bool:
    return listing.num_ranks == 1 and any(
        len(records) > 1 and parse_layout(records[0].layout).is_in_chunks
        for records in listing.values.values()
    )


def _as_part(pair: Pair, golden: Listing, target: Listing) -> Pair | None:
    """`pair` of a value and one that it is beside, or is a part of; None where it is neither."""
    if pair.golden is None or pair.target is None or pair.by is not PairedBy.VALUE:
        return pair
    one, other = golden.values[pair.golden], target.values[pair.target]
    if _is_mixed(golden, pair.golden) or _is_mixed(target, pair.target):
        return None
    if chunks := _chunks(target, pair.target):
        part = _part(other, chunks, one[0].shape)
        return replace(pair, golden_part=part) if part else None
    if chunks := _chunks(golden, pair.golden):
        part = _part(one, chunks, other[0].shape)
        return replace(pair, target_part=part) if part else None
    is_whole = len(one) == len(other) == 1
    return None if is_whole and one[0].shape != other[0].shape else pair


def _is_mixed(listing: Listing, key: Key) -> bool:
    """Whether a function gave it that took single chunks."""
    if key.op.is_module or not key.slot.is_output:
        return False
    taken = (other for other in listing.sites[key.site] if other.slot.is_input)
    return any(_chunks(listing, other) for other in taken)


def _chunks(listing: Listing, key: Key) -> Sequence[Record]:
    """The chunks of which a value is one, or of which only some are in it; none of others."""
    origins = listing.origins(key)
    chunks = listing.values.get(origins[0], ()) if origins else ()
    if len(chunks) < 2 or not parse_layout(chunks[0].layout).is_in_chunks:
        return ()
    return chunks if len(listing.values[key]) == 1 or len(origins) > 1 else ()


def _part(records: Sequence[Record], chunks: Sequence[Record], whole: Extents) -> Cut | None:
    """The part of a whole that a value is which is one of its chunks."""
    if len(records) > 1 or not records[0].digest:
        return None
    parts = joined([chunk.shape for chunk in chunks], whole) or ()
    both = zip(chunks, parts, strict=False)
    return next((part for chunk, part in both if chunk.digest == records[0].digest), None)


@dataclass(frozen=True, eq=False)
class _Search:
    """Looks for the loops of one run, by the ops that together give what the other's give."""

    divided: Listing
    whole: Listing
    ours: NamedCalls  # by golden's names of models and steps, as theirs
    theirs: NamedCalls
    _wholes: dict[Site, Site] = field(default_factory=dict)  # a first lap's call -> the other's

    def merged(self) -> Listing:
        """The run with its chunks as shards."""
        laps: dict[int, dict[Site, tuple[Site, int]]] = defaultdict(dict)
        for loop in self.loops():
            laps[len(loop.spans)] |= calls_in(self._lines[loop.where], loop)
        found = self.divided
        for num, calls in laps.items():
            found = Merging(found, num, calls, CHUNK).merged()
        return self._with_dims(found) if laps else found

    def _with_dims(self, found: Listing) -> Listing:
        """`found`, whose chunks have the dim that they are cut along where their calls lack it."""
        values = dict(found.values)
        for first, call in self._wholes.items():
            for key in found.sites.get(first, ()):
                whole, chunks = self.whole.values.get(call.key(key.slot)), values[key]
                shapes = [chunk.shape for chunk in chunks]
                axis = stacked_along(shapes, whole[0].shape) if whole else None
                if len(chunks) > 1 and axis is not None:
                    values[key] = tuple(_with_dim(chunk, axis) for chunk in chunks)
        return replace(found, values=values)

    @cached_property
    def _lines(self) -> dict[_Step, Timeline]:
        return timelines(self.divided, self.ours)

    def loops(self) -> Iterator[Loop]:
        """The loops, with all calls that run in each of their laps.

        Loops are looked at together that no call which runs once lies between.
        """
        found: dict[tuple[_Step, int, int], list[Loop]] = defaultdict(list)
        for name, sites in self.ours.items():
            where = name[:2]
            for laps, calls in self._divided(name, sites):
                self._wholes.update(zip(laps[0], calls, strict=True))
                spans = [span_of(self.divided, lap) for lap in laps]
                here = found[where, len(laps), bisect(self._once.get(where, ()), spans[0][0])]
                if not any(self._takes(loop, spans) for loop in here):
                    here.append(Loop(where, spans))
        for loops in found.values():
            for loop in loops:
                self._extend(loop)
                yield loop

    @cached_property
    def _once(self) -> Mapping[_Step, Sequence[int]]:
        """When calls ran that the other run has as often: no loop goes around them.

        What takes nothing may begin a state, in the first lap.
        """
        found: dict[_Step, list[int]] = defaultdict(list)
        for name, sites in self.ours.items():
            if len(sites) == len(self.theirs.get(name, ())):
                taking = (site for site in sites if self._takes_any(site))
                found[name[:2]] += [order_of(self.divided, site) for site in taking]
        return {where: sorted(orders) for where, orders in found.items()}

    def _takes_any(self, site: Site) -> bool:
        return any(key.slot.kind == "input" for key in self.divided.sites[site])

    def _divided(self, name: OpName, sites: Sequence[Site]) -> list[tuple[_Laps, Sequence[Site]]]:
        """The laps that an op runs in, of one loop around all of its calls, or of several.

        Each with the calls of the other run that its laps are.
        """
        mates = self.theirs.get(name, ())
        num, rest = divmod(len(sites), len(mates)) if mates else (0, 0)
        if num < 2 or rest:
            return []
        for size in (n for n in range(len(mates), 0, -1) if not len(mates) % n):
            calls = _in_runs(mates, size)
            loops = [_in_runs(run, size) for run in _in_runs(sites, size * num)]
            fit = all(self._fits(laps, run) for laps, run in zip(loops, calls, strict=True))
            if fit and all(self._is_clear(name[:2], laps) for laps in loops):
                return list(zip(loops, calls, strict=True))
        return []

    def _is_clear(self, where: _Step, laps: _Laps) -> bool:
        first, last = order_of(self.divided, laps[0][0]), order_of(self.divided, laps[-1][-1])
        return _is_free(self._once.get(where, ()), first, last)

    def _fits(self, laps: _Laps, calls: Sequence[Site]) -> bool:
        """Whether each line of code gives in all laps together what its call gives in the other."""
        return all(self._are_chunks([lap[n] for lap in laps], call) for n, call in enumerate(calls))

    def _are_chunks(self, sites: Sequence[Site], call: Site) -> bool:
        if len(set(lines_of(self.divided, sites))) > 1:
            return False
        outputs = [key for key in self.whole.sites[call] if key.slot.is_output]
        fit = [self._fit(sites, key) for key in outputs]
        return True in fit and None not in fit

    def _fit(self, sites: Sequence[Site], key: Key) -> bool | None:
        """Whether calls give a value together; False where each gives one like it, such as a state.

        None where they give something else.
        """
        keys = [site.key(key.slot) for site in sites]
        if not all(one in self.divided.values for one in keys):
            return None
        shapes, whole = [self.divided.record(one).shape for one in keys], self.whole.record(key)
        if joined(shapes, whole.shape) or stacked_along(shapes, whole.shape) is not None:
            return True
        return False if set(shapes) == {whole.shape} else None

    def _extend(self, loop: Loop) -> None:
        """Take in what the other run has not, and runs as often in each lap: what cuts a chunk."""
        num, orders = len(loop.spans), self._once.get(loop.where, ())
        near, far = bisect(orders, loop.spans[0][0]), bisect(orders, loop.spans[-1][1])
        line = self._lines[loop.where]
        after = orders[near - 1] + 1 if near else line.orders[0]
        before = orders[far] - 1 if far < len(orders) else line.orders[-1]
        own: dict[str, list[Site]] = defaultdict(list)
        for _, _, site in line.between(after, before):
            own[site.op.plain].append(site)
        for sites in own.values():
            size, rest = divmod(len(sites), num)
            laps = [] if rest else _in_runs(sites, size)
            if laps and len({tuple(lines_of(self.divided, lap)) for lap in laps}) == 1:
                spans = [span_of(self.divided, lap) for lap in laps]
                if len({_side(*both) for both in zip(spans, loop.spans, strict=True)}) == 1:
                    self._takes(loop, spans)

    def _takes(self, loop: Loop, spans: Sequence[LapSpan]) -> bool:
        """Take calls into a loop, unless what runs once would be in it then; whether it does."""
        first, last = min(loop.spans[0][0], spans[0][0]), max(loop.spans[-1][1], spans[-1][1])
        return _is_free(self._once.get(loop.where, ()), first, last) and loop.takes(spans)


def _with_dim(record: Record, axis: int) -> Record:
    """`record` with a dim of one element more."""
    stride = record.stride and (*record.stride[:axis], 1, *record.stride[axis:])
    return replace(record, shape=(*record.shape[:axis], 1, *record.shape[axis:]), stride=stride)


def _side(own: LapSpan, lap: LapSpan) -> int:
    """Whether calls ran before a lap, in it or after it."""
    return (own[0] > lap[1]) - (own[1] < lap[0])


def _in_runs(sites: Sequence[Site], size: int) -> list[Sequence[Site]]:
    """Calls in runs of so many."""
    return [sites[n : n + size] for n in range(0, len(sites), size)]


def _is_free(orders: Sequence[int], first: int, last: int) -> bool:
    """Whether none of `orders`, which ascend, lies from `first` to `last`."""
    return bisect(orders, last) == bisect(orders, first)
