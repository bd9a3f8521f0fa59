"""Finds gradients of parts that golden alone cuts from a value, where the target has the whole.

The gradient of a part is what was made of that part. A rank that has the part from the start has
with it all that others make of the value: both are right, and they are not the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Pair


def cut_gradients(sides: Partners) -> set[Key]:
    """Golden's gradients, where they first appear, of parts that the target does not cut.

    Only of a value that others take whole: else the parts together have all of its gradient.
    """
    takers: dict[Key, set[Site]] = defaultdict(set)
    for key in sides.golden.values:
        if key.slot.kind == "input" and not key.op.is_module:
            takers[sides.golden.first(key)].add(key.site)
    found: set[Key] = set()
    for site in sides.golden_left():
        whole = _whole(sides.golden, site)
        if whole and len(takers[sides.golden.first(whole)]) > 1:
            gradients = (key for key in sides.golden.sites[site] if key.slot.kind == "grad_output")
            found.update(map(sides.golden.first, gradients))
    return found


def _whole(listing: Listing, site: Site) -> Key | None:
    """The one value that a call takes and cuts into smaller ones."""
    keys = listing.sites[site]
    taken = [key for key in keys if key.slot.kind == "input"]
    given = [key for key in keys if key.slot.is_output]
    if len(taken) != 1 or not given or site.op.is_module:
        return None
    size = math.prod(listing.record(taken[0]).shape)
    parts = sum(math.prod(record.shape) for key in given for record in listing.values[key])
    laps = any(len(listing.values[key]) > 1 for key in given)
    return taken[0] if laps and parts <= size else None


def apart(sides: Partners, pairs: Iterable[Pair], cut: set[Key]) -> Iterator[Pair]:
    """`pairs`, in which gradients that are `cut` stand alone, and so do those beside them."""
    for pair in pairs:
        if is_cut(sides, pair, cut):
            yield Pair(pair.golden, None)
            yield Pair(None, pair.target)
        else:
            yield pair


def is_cut(sides: Partners, pair: Pair, cut: set[Key]) -> bool:
    """Whether a gradient that is `cut` stands beside another."""
    return bool(pair.both and pair.golden and sides.golden.first(pair.golden) in cut)
