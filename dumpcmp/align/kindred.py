"""The pass by order: calls that are left pair with those in the same place of the same module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable

from dumpcmp.align.listing import Listing
from dumpcmp.align.order import aligned
from dumpcmp.align.partners import Partners
from dumpcmp.align.renaming import unwrapped
from dumpcmp.align.sweeping import Sweep
from dumpcmp.nouns.key import Op, Site
from dumpcmp.nouns.op_names import canonical
from dumpcmp.nouns.row import PairedBy

Family = list[tuple[Site, str]]  # the calls inside one module, and their names there
_LONG = 4096  # products of numbers of calls above which their labels are looked at
_WEIGHT = 16  # of two calls of one name that nothing speaks against


def by_order(sides: Partners, sweep: Sweep | None = None) -> None:
    """Pair what is left by its order among the calls of the same module."""
    golden = _families(((site, site) for site in sides.golden.sites), sides.golden_name)
    target = _families(sides.terms.items(), unwrapped)
    for family, calls in golden.items():
        others = target.get(family, [])
        if _has_left(calls, sides.partner) and _has_left(others, sides.taken):
            _align_family(sides, sweep, calls, others)


def _has_left(calls: Family, paired: Container[Site]) -> bool:
    return any(site not in paired for site, _ in calls)


def _families(
    sites: Iterable[tuple[Site, Site]], name: Callable[[Op], str]
) -> dict[tuple[str, int, str], Family]:
    found: dict[tuple[str, int, str], Family] = defaultdict(list)
    for site, terms in sites:
        path, child = Op(name(terms.op)).family
        label = f"/{canonical(child[1:])}" if child.startswith("/") else child
        found[terms.model, terms.step, path].append((site, label))
    return found


def _align_family(sides: Partners, sweep: Sweep | None, golden: Family, target: Family) -> None:
    position = {site: j for j, (site, _) in enumerate(target)}
    partners = ((i, sides.partner.get(site)) for i, (site, _) in enumerate(golden))
    anchors = [(i, position[p]) for i, p in partners if p is not None and p in position]

    def weigh(i: int, j: int) -> int:
        (here, name), (there, other) = golden[i], target[j]
        if name != other or here in sides.partner or there in sides.taken:
            return 0
        weight = _likeness(sides, here, there)
        return weight and sweep.weigh(here, there, weight) if sweep else weight

    labels = None
    if sweep and len(golden) * len(target) > _LONG:
        labels = _labels(sides.golden, golden), _labels(sides.target, target)
    for i, j in aligned((len(golden), len(target)), anchors, weigh, labels):
        here, there = golden[i][0], target[j][0]
        if sweep:
            sweep.pair(here, there, PairedBy.ORDER)
        else:
            sides.pair(here, there, PairedBy.ORDER)


def _labels(listing: Listing, family: Family) -> list[Hashable]:
    """What each call is known by: its name, its line, and the shapes that it gives."""
    found: list[Hashable] = []
    for site, name in family:
        call = listing.calls.get(site)
        shapes = (listing.record(key).shape for key in listing.sites[site] if key.slot.is_output)
        source, arguments = (call.source, call.arguments) if call else ("", "")
        found.append((name, source, arguments, *shapes))
    return found


def _likeness(sides: Partners, golden: Site, target: Site) -> int:
    """How alike two calls of one function are; 0 where their outputs have other shapes."""
    ours = {key.slot: key for key in sides.golden.sites[golden]}
    theirs = {key.slot: key for key in sides.target.sites[target]}
    weight = _WEIGHT + (golden.call == target.call)
    for slot in ours.keys() & theirs.keys():
        if slot.is_output and not sides.fit(ours[slot], theirs[slot]):
            return 0
        one, other = sides.golden.record(ours[slot]), sides.target.record(theirs[slot])
        weight += 2 * (one.dtype == other.dtype)
        weight += 8 * (one.digest == other.digest != "")
    return weight
