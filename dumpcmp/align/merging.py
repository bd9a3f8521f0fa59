"""Values that one side holds in one and the other in several: merged qkv, gate and up, experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.align.pieces import parts_of
from dumpcmp.align.renaming import Merge, unwrapped, value_name
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Cut, DimOrder, Pair, PairedBy

WholeAndPieces = tuple[Key, list[Key]]  # a whole, and its pieces in their order


def merged_pairs(sides: Partners) -> list[Pair]:
    """What the mapping calls pieces of another value, each beside its part of it."""
    return [pair for merge in sides.renaming.merges for pair in _pairs(sides, merge)]


def with_merged(found: Sequence[Pair], pairs: Iterable[Pair]) -> list[Pair]:
    """`pairs`, but `found` for what stands alone and is in those.

    What the user calls the same as a whole is nothing else besides.
    """
    ours, theirs = {pair.golden for pair in found}, {pair.target for pair in found}
    whole = [pair for pair in found if not (pair.golden_part or pair.target_part)]
    stated = {pair.golden for pair in whole}, {pair.target for pair in whole}
    kept = []
    for pair in pairs:
        if pair.both and (pair.golden in stated[0] or pair.target in stated[1]):
            apart = (Pair(pair.golden, None), Pair(None, pair.target))
            kept += [one for one in apart if one.key not in ours and one.key not in theirs]
        elif pair.both or (pair.golden not in ours and pair.target not in theirs):
            kept.append(pair)
    return [*kept, *found]


def _pairs(sides: Partners, merge: Merge) -> Iterator[Pair]:
    pieces, whole = _sides_of(sides, merge)
    groups = list(_values(sides, merge) if merge.of_values else _slots(sides, merge))
    found = [pair for group in groups for pair in _cut(sides, group, merge)]
    made = [group for group in groups if group[0].slot.is_output or merge.of_values]
    fitting = {pair.target if merge.of_golden else pair.golden for pair in found}
    misses = merge.is_stated and made and not any(key in fitting for key, _ in made)
    if misses and not _has_room(*made[0], pieces, whole, merge):
        raise _misfit(*made[0], pieces, whole, merge)
    yield from found


def _has_room(
    key: Key, group: Sequence[Key], pieces: Listing, whole: Listing, merge: Merge
) -> bool:
    """Whether pieces fit along the axis that is stated, if other dims may lie in another order."""
    axis = -1 if merge.axis is None else merge.axis
    shapes, size = [pieces.record(one).shape for one in group], whole.record(key).shape
    if any(len(shape) != len(size) for shape in shapes) or not -len(size) <= axis < len(size):
        return False
    sizes = [shape[axis] for shape in shapes]
    return sum(sizes) == size[axis] and not any(n % merge.groups for n in sizes)


def _sides_of(sides: Partners, merge: Merge) -> tuple[Listing, Listing]:
    """The listing that has the pieces, and the one that has the whole."""
    return (sides.golden, sides.target) if merge.of_golden else (sides.target, sides.golden)


def _misfit(
    key: Key, group: Sequence[Key], pieces: Listing, whole: Listing, merge: Merge
) -> AlignError:
    shapes = ", ".join(str(list(pieces.record(one).shape)) for one in group)
    axis = "an axis" if merge.axis is None else f"axis {merge.axis}"
    turns = f", in {merge.groups} groups" if merge.groups > 1 else ""
    return AlignError(
        f"mapping {merge.line!r}: {shapes} do not make up {list(whole.record(key).shape)} of "
        f"{key} along {axis}{turns}",
        hint="leave `axis` and `groups` out to have them found from shapes, or see "
        "`dumpcmp map` for what the values say",
    )


def _slots(sides: Partners, merge: Merge) -> Iterator[WholeAndPieces]:
    """The values of calls that are pieces, slot by slot."""
    pieces, whole = _sides_of(sides, merge)
    for site, calls in _groups(sides, merge).items():
        for key in whole.sites[site]:
            keys = [one.key(key.slot) for one in calls]
            if all(one in pieces.values for one in keys):
                yield key, keys


def _groups(sides: Partners, merge: Merge) -> dict[Site, list[Site]]:
    """The calls of pieces by the call that has them in one; all of them, in their order."""
    pieces, whole = _sides_of(sides, merge)
    terms = sides.terms
    own = {terms[site] if merge.of_golden else site: site for site in whole.sites}
    found: dict[Site, dict[int, Site]] = {}
    for site in pieces.sites:
        here = site if merge.of_golden else terms[site]
        for n, rule in enumerate(merge.rules):
            name = rule.renamed(unwrapped(here.op))
            there = own.get(here._replace(op=type(here.op)(name))) if name is not None else None
            if there is not None:
                found.setdefault(there, {})[n] = site
    num = len(merge.rules)
    return {site: [g[n] for n in range(num)] for site, g in found.items() if len(g) == num}


def _values(sides: Partners, merge: Merge) -> Iterator[WholeAndPieces]:
    """The values that are pieces by their own names."""
    pieces, whole = _sides_of(sides, merge)

    def named(key: Key, listing: Listing) -> tuple[str, int, str]:
        site = key.site if listing is sides.golden else sides.terms[key.site]
        return site.model, site.step, value_name(key)

    own = {named(key, whole): key for key in whole.values}
    found: dict[Key, dict[int, Key]] = {}
    for key in pieces.values:
        model, step, name = named(key, pieces)
        for n, rule in enumerate(merge.rules):
            called = rule.renamed(name)
            there = own.get((model, step, called)) if called is not None else None
            if there is not None:
                found.setdefault(there, {})[n] = key
    num = len(merge.rules)
    for key, group in found.items():
        if len(group) == num:
            yield key, [group[n] for n in range(num)]


def _cut(sides: Partners, group: WholeAndPieces, merge: Merge) -> Iterator[Pair]:
    """A pair for each piece; the axis that a line states is that of what ops take and give."""
    key, keys = group
    if len(keys) == 1:
        one, other = (keys[0], key) if merge.of_golden else (key, keys[0])
        yield Pair(one, other, PairedBy.MAPPING)
        return
    parts, turn = _parts(sides, group, merge)
    for piece, part in zip(keys, parts, strict=False):
        if merge.of_golden:
            yield replace(Pair(piece, key, PairedBy.MAPPING), target_part=part, turn=turn)
        else:
            yield replace(Pair(key, piece, PairedBy.MAPPING), golden_part=part, turn=turn)


def _parts(
    sides: Partners, group: WholeAndPieces, merge: Merge
) -> tuple[Sequence[Cut], DimOrder | None]:
    """Where pieces lie in the whole, and in which order the target's dims then are golden's.

    Of several ways to lie, as a square weight may be transposed or not, the values decide.
    """
    key, keys = group
    pieces, whole = _sides_of(sides, merge)
    axis = None if key.slot.is_weight or key.slot.is_parameter_gradient else merge.axis
    shapes, size = [pieces.record(one).shape for one in keys], whole.record(key).shape
    plain = parts_of(shapes, size, axis, merge.groups) or ()
    if sides.turns is None:
        return plain, None
    num = {len(shape) for shape in shapes}  # of stacked pieces one less than of the whole
    dims = range(num.pop()) if len(num) == 1 else range(0)
    orders = [o for o in permutations(dims) if list(o) != sorted(o)]
    ways: list[tuple[Sequence[Cut], DimOrder | None]] = [(plain, None)] if plain else []
    for order in orders if len(size) - 1 <= len(dims) <= len(size) else ():
        turned = [tuple(shape[n] for n in order) for shape in shapes]
        if parts := parts_of(turned, size, axis, merge.groups):
            back = tuple(order.index(n) for n in range(len(order)))
            ways.append((parts, back if merge.of_golden else order))
    return next((way for way in ways if _shows(sides, group, merge, *way)), (plain, None))


def _shows(
    sides: Partners,
    group: WholeAndPieces,
    merge: Merge,
    parts: Sequence[Cut],
    turn: DimOrder | None,
) -> bool:
    """Whether the first piece is what lies there in the whole."""
    key, (piece, *_) = group
    assert sides.turns is not None
    if merge.of_golden:
        return sides.turns.shows((piece, None), (key, parts[0]), turn)
    return sides.turns.shows((key, parts[0]), (piece, None), turn)
