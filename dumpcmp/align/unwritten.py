"""Values that are memory as it was found: what ``empty`` and its like give, until it is written."""

from __future__ import annotations

import math

from dumpcmp.align.listing import Listing
from dumpcmp.align.synonyms import gives_views
from dumpcmp.nouns.arithmetic import gives_memory
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.op_names import WorkSet, canonical
from dumpcmp.nouns.record import UNWRITTEN
from dumpcmp.nouns.row import Unwritten

# Functions that write into a part of their first argument.
_WRITERS = WorkSet(
    "index_add index_copy index_fill index_put masked_fill masked_scatter scatter setitem"
)


def unwritten(listing: Listing) -> dict[Key, Unwritten]:
    """The values of a run that nobody has written, by first appearance: wholly, or in part."""
    found = {
        key: Unwritten.WHOLLY
        for key, records in listing.values.items()
        if records[0].problem == UNWRITTEN
    }
    for site, keys in listing.sites.items():
        function = site.op.function
        if not function:
            continue
        given = next((key for key in keys if key.slot.is_input), None)
        before = found.get(listing.first(given), Unwritten.NO) if given else Unwritten.NO
        if gives_memory(site.op):
            after = Unwritten.WHOLLY
        elif before and function in _WRITERS:
            after = Unwritten.NO if _fills(site, listing) else Unwritten.PARTLY
        else:
            after = before if gives_views(function) else Unwritten.NO
        if after:
            made = (listing.first(key) for key in keys if key.slot.is_output)
            found |= {key: after for key in made if key not in found}
    return found


def _fills(site: Site, listing: Listing) -> bool:
    """Whether a call puts as many elements into places of its own choice as there are."""
    puts = {"setitem": "input.2", "index_copy": "input.3"}.get(canonical(site.op.function), "")
    given, made = (listing.values.get(site.key(slot)) for slot in (puts, "output.0"))
    if not given or not made:
        return False
    return all(
        math.prod(one.shape) == math.prod(other.shape)
        for one, other in zip(given, made, strict=False)
    )
