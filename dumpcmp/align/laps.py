"""Makes the laps of golden's loop one program, where each rank of the target runs one of them.

A whole model that fills the places of its experts shard by shard, or calls its experts one after
the other, runs in a loop what every rank of a partitioned run does once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dumpcmp.align.listing import Listing
from dumpcmp.align.looping import (
    Loop,
    Merging,
    NamedCalls,
    OpName,
    calls_by_name,
    calls_in,
    lines_of,
    op_name,
    span_of,
    timelines,
)
from dumpcmp.nouns.key import Site

_FEWEST = 2  # functions that run in each lap, before a loop is believed in


def in_laps(golden: Listing, target: Listing, terms: Mapping[Site, Site]) -> Listing:
    """`golden` with the laps of its loops as shards of one, as many as the target has ranks.

    `terms` are golden's names of the target's calls. Records keep their own keys.
    """
    num = target.num_ranks
    if golden.num_ranks > 1 or num == 1 or any(r[0].layout for r in golden.values.values()):
        return golden
    ours = calls_by_name(golden.sites)
    theirs = Counter(op_name(site) for site in terms.values())
    laps: dict[Site, tuple[Site, int]] = {}
    lines = timelines(golden, ours)
    for loop in _loops(golden, ours, theirs, num):
        laps |= calls_in(lines[loop.where], loop)
    return Merging(golden, num, laps).merged() if laps else golden


def _loops(
    golden: Listing, ours: NamedCalls, theirs: Mapping[OpName, int], num: int
) -> Iterator[Loop]:
    """The loops of `num` laps, by the ops that ran `num` times as often as in the target."""
    found: dict[tuple[str, int], list[Loop]] = defaultdict(list)
    for name, sites in ours.items():
        size = theirs.get(name, 0)
        if not size or len(sites) != num * size or not _are_mates(golden, sites, size):
            continue
        laps = [sites[n : n + size] for n in range(0, len(sites), size)]
        spans = [span_of(golden, lap) for lap in laps]
        here = found[name[:2]]
        if not here or spans[0][0] > here[-1].spans[-1][1]:
            here.append(Loop(name[:2], spans))
        elif not here[-1].takes(spans):
            continue
        here[-1].num_functions += not sites[0].op.is_module
    for loops in found.values():
        yield from (loop for loop in loops if loop.num_functions >= _FEWEST)


def _are_mates(golden: Listing, sites: Sequence[Site], size: int) -> bool:
    """Whether calls that are `size` apart stand in one line of code."""
    lines = lines_of(golden, sites)
    known = all(lines) or sites[0].op.is_module
    return known and all(line == lines[n % size] for n, line in enumerate(lines))
