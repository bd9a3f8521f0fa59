"""Values whose sizes depend on other values: the places of a mask, the rows of an expert."""

from __future__ import annotations

from collections.abc import Iterable

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.op_names import WorkSet, canonical

_COUNTING = WorkSet("nonzero argwhere masked_select unique unique_consecutive")


def varying(listing: Listing) -> dict[Key, int]:
    """The values of a run whose shape depends on values, by first appearance, and that size."""
    found: dict[Key, int] = {}
    for site, keys in listing.sites.items():
        if site.op.is_module:
            continue
        given = [listing.first(key) for key in keys if key.slot.is_input]
        got = [key for key in keys if key.slot.is_output and key not in listing.links]
        sizes = {found[key] for key in given if key in found}
        for key in got:
            size = _counted(listing, site, keys, key)
            inherited = (n for n in listing.record(key).shape if n in sizes)
            size = next(inherited, None) if size is None else size
            if size is not None:
                found[key] = size
    return found


def without(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """`shape` less the first dim that has `size`."""
    at = shape.index(size) if size in shape else len(shape)
    return shape[:at] + shape[at + 1 :]


def _counted(listing: Listing, site: Site, keys: Iterable[Key], got: Key) -> int | None:
    """The size of an output that the call itself counts out of values; None where it does not."""
    function, shape = canonical(site.op.function), listing.record(got).shape
    given = [listing.record(key) for key in keys if key.slot.is_input]
    masks = [record for record in given[1:] if record.dtype == "bool"]
    counts = function in _COUNTING or (function == "where" and len(given) == 1)
    if shape and (counts or (function == "getitem" and masks)):
        return shape[0]
    if function == "split" and given and '[{"slot":"input.0"},[' in _arguments(listing, site):
        return next((n for n, m in zip(shape, given[0].shape, strict=False) if n != m), None)
    return None


def _arguments(listing: Listing, site: Site) -> str:
    call = listing.calls.get(site)
    return call.arguments if call else ""
