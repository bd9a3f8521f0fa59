"""From calls to values: the slots of partners, and what a value without a partner is beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from dumpcmp.align.flow import Flow, Strand, content_of
from dumpcmp.align.gradient_terms import is_at_maker
from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.align.pieces import Extents
from dumpcmp.align.sweeping import Sweep
from dumpcmp.nouns.key import ROOT, Key, Site, Slot
from dumpcmp.nouns.op_names import WorkSet
from dumpcmp.nouns.row import Pair, PairedBy
from dumpcmp.nouns.value import dtype_named

Look = tuple[Strand, str, int, tuple[int, ...], str]  # a strand in a step, a shape and a dtype
Terms = Callable[[Site], Site]  # golden's names of a call's model and step
_NAMED = (PairedBy.KEY, PairedBy.PREFIX, PairedBy.MAPPING)
_COMMUTING = WorkSet("add mul maximum minimum")
KeysBySlot = dict[Slot, Key]


def paired_values(sides: Partners, sweep: Sweep | None = None) -> Iterator[Pair]:
    """The slots of calls that found each other: same names first, then the same kind in order."""
    for site, partner in sides.partner.items():
        by = sides.passes[site]
        ours = {key.slot: key for key in sides.golden.sites[site]}
        theirs = {key.slot: key for key in sides.target.sites[partner]}
        alike = site.op.function == partner.op.function and _num_taken(ours) == _num_taken(theirs)
        if sweep and (not alike or _crossed(sweep, site, partner)):
            yield from _same_strands(sweep, ours, theirs, by)
        for slot in [slot for slot in ours if slot in theirs]:
            if _belong(sides, sweep, ours[slot], theirs[slot], by, alike):
                yield Pair(ours.pop(slot), theirs.pop(slot), by)
        for kind in dict.fromkeys(slot.kind for slot in (*ours, *theirs)):
            left = [key for slot, key in ours.items() if slot.kind == kind]
            right = [key for slot, key in theirs.items() if slot.kind == kind]
            for one, other in zip_longest(left, right):
                yield from _maybe(sides, sweep, one, other, alike)


def _crossed(sweep: Sweep, golden: Site, target: Site) -> bool:
    """Whether two sums or products take the same two values in the other order."""
    one, other = sweep.ours.doings.get(golden), sweep.theirs.doings.get(target)
    if one is None or other is None or one.function not in _COMMUTING:
        return False
    if len(one.takes) != 2 or len(other.takes) != 2 or {one.literals, other.literals} - {"", "-"}:
        return False
    mates = [sweep.mate(strand) for strand in other.takes]
    return mates == [one.takes[1], one.takes[0]] != list(one.takes)


def _num_taken(slots: KeysBySlot) -> int:
    return sum(slot.kind == "input" for slot in slots)


def _belong(
    sides: Partners, sweep: Sweep | None, golden: Key, target: Key, by: PairedBy, alike: bool
) -> bool:
    """Whether the values of one slot are the same: of one shape, or so by all that is known.

    Calls that are `alike` are of one function and take as many values.
    """
    if sides.fit(golden, target):
        one, other = sides.golden.record(golden).dtype, sides.target.record(target).dtype
        same = golden.op.function == target.op.function
        if alike or (same and not (sweep and golden.slot.is_input)):
            return True
        if golden.slot.is_weight and golden.slot == target.slot and by in _NAMED:
            return sides.turns is None or sweep is None or _are_known(sweep, golden, target)
        if sweep and golden.slot.kind == "grad_input":
            return False  # of what one takes as it is and the other as a view: see `_gradients`
        if sweep and golden.slot.is_input:  # each function takes them in its own order and views
            return sweep.mate(sweep.theirs.strand(target)) == sweep.ours.strand(golden)
        return dtype_named(one).kind is dtype_named(other).kind
    if _are_apart(sides, golden, target):
        return False  # each stands where it was given out, and what is made of it tells
    return by in _NAMED and (sweep is None or _are_known(sweep, golden, target))


def _are_apart(sides: Partners, golden: Key, target: Key) -> bool:
    """Whether both are earlier values of the step, which no calls that are partners gave out."""
    if not (_is_again(sides.golden, golden) and _is_again(sides.target, target)):
        return False
    ours, theirs = sides.golden.first(golden), sides.target.first(target)
    return ours.slot != theirs.slot or sides.partner.get(ours.site) != theirs.site


def _is_again(listing: Listing, key: Key) -> bool:
    """Whether it is an earlier value of the step, which a call took or a module hands on.

    What the model itself gives out is what must be the same, wherever it stood before.
    """
    handed = key.slot.is_output and key.op.is_module and key.op != ROOT
    return key in listing.links and (key.slot.kind == "input" or handed)


def _are_known(sweep: Sweep, golden: Key, target: Key) -> bool:
    """Whether two values of different shapes are the same by the flow, or by where they stand.

    A gradient is what the value is that it is the gradient of.
    """
    one, other = golden, target
    if golden.slot.is_gradient:
        one, other = (key.site.key(key.slot.value) for key in (golden, target))
    if golden.op.is_module or not one.slot.is_input:
        return True
    if one not in sweep.ours.listing.values or other not in sweep.theirs.listing.values:
        return True
    return sweep.mate(sweep.theirs.strand(other)) == sweep.ours.strand(one)


def _same_strands(
    sweep: Sweep, ours: KeysBySlot, theirs: KeysBySlot, by: PairedBy
) -> Iterator[Pair]:
    """What two calls of different functions take, in whatever order they take it."""
    given: dict[Strand | None, list[Key]] = {}
    for key in [key for key in theirs.values() if key.slot.is_input]:
        given.setdefault(sweep.mate(sweep.theirs.strand(key)), []).append(key)
    for key in [key for key in ours.values() if key.slot.is_input]:
        others = given.get(sweep.ours.strand(key), [])  # several may have the same bytes
        other = next((other for other in others if sweep.sides.fit(key, other)), None)
        if other is not None:
            others.remove(other)
            yield Pair(ours.pop(key.slot), theirs.pop(other.slot), by)


def _maybe(
    sides: Partners, sweep: Sweep | None, golden: Key | None, target: Key | None, alike: bool
) -> Iterator[Pair]:
    """A pair where both are there and of one shape, else each alone."""
    if golden and target and _belong(sides, sweep, golden, target, PairedBy.ORDER, alike):
        yield Pair(golden, target, PairedBy.ORDER)
        return
    if golden:
        yield Pair(golden, None)
    if target:
        yield Pair(None, target)


def left_values(sides: Partners) -> Iterator[Pair]:
    """The values of calls without a partner."""
    yield from (Pair(key, None) for s in sides.golden_left() for key in sides.golden.sites[s])
    yield from (Pair(None, key) for s in sides.target_left() for key in sides.target.sites[s])


def laid_beside(sweep: Sweep, pairs: Sequence[Pair]) -> list[Pair]:
    """`pairs`; a value that stands alone is laid beside what it is on the other side.

    A module gives what a function in it gave, a copy what it took, and two sides may unpack,
    reshape and compute a value by other calls. The gradient of a value is beside the gradient of
    its partner.
    """
    ours, theirs = _gradients(sweep, pairs)
    seen = _as_seen(sweep.sides)
    own = {one: sweep.same.get(other, one) if sweep.sides.turns else one
           for one, other in sweep.mates.items()}  # fmt: skip
    here = _Looks(sweep.ours, own, lambda site: site, seen)
    there = _Looks(sweep.theirs, sweep.same, sweep.sides.terms.__getitem__, seen)
    ours |= here.beside(there, (pair.golden for pair in pairs if pair.target is None))
    theirs |= there.beside(here, (pair.target for pair in pairs if pair.golden is None))
    placed: list[Pair] = []
    laid: set[tuple[Key, Key]] = set()  # two that stand alone are laid beside each other once
    for pair in pairs:
        golden = pair.golden or theirs.get(pair.target)
        target = pair.target or ours.get(pair.golden)
        if pair.both or not (golden and target and sweep.sides.may_be_one(golden, target)):
            placed.append(pair)
        elif (golden, target) not in laid:
            laid.add((golden, target))
            placed.append(Pair(golden, target, PairedBy.VALUE))
    return placed


def _as_seen(sides: Partners) -> Callable[[Extents], Extents]:
    """What of a shape must be the same: of two implementations the dims, in whatever order.

    What a partitioned run holds are shards, whose sizes are not those of the value.
    """
    if not sides.is_whole:
        return lambda shape: (len(shape),)
    if sides.turns is not None:
        return lambda shape: tuple(sorted(size for size in shape if size != 1))
    return lambda shape: shape


@dataclass(frozen=True)
class _Looks:
    """The values of one run, each by the strand that it is in golden's numbers."""

    flow: Flow
    mates: Mapping[Strand, Strand]
    terms: Terms
    seen: Callable[[Extents], Extents]  # what of a shape tells

    def look(self, key: Key) -> Look | None:
        """What `key` is, and how it looks; None where that is not known."""
        mate = self.mates.get(self.flow.strand(key))
        if mate is None or key.slot.is_gradient:
            return None
        record, terms = self.flow.listing.record(key), self.terms(key.site)
        return mate, terms.model, terms.step, self.seen(record.shape), record.dtype

    @cached_property
    def firsts(self) -> dict[Look | None, Key]:
        """Where each strand first appears, in each shape."""
        listing = self.flow.listing
        found: dict[Look | None, Key] = {}
        for keys in listing.sites.values():
            for key in keys:
                first = listing.first(key)  # what a collective gave is not looked at here
                found.setdefault(self.look(key), first if first in listing.values else key)
        found.pop(None, None)
        return found

    def beside(self, other: _Looks, alone: Iterable[Key | None]) -> dict[Key | None, Key]:
        """The values of this run that stand `alone`, and what each is in the `other`."""
        looks = ((key, self.look(key)) for key in alone if key is not None)
        known = [(key, look) for key, look in looks if look is not None]
        found = ((key, other.firsts.get(look)) for key, look in known)
        return {key: beside for key, beside in found if beside is not None}


def _gradients(
    sweep: Sweep, pairs: Iterable[Pair]
) -> tuple[dict[Key | None, Key], dict[Key | None, Key]]:
    """Gradients, and those of the same values on the other side: golden's, and the target's.

    The gradient of a value is known at who made it: takers on ranks may each have only their own.
    """
    golden, target = sweep.ours.listing, sweep.theirs.listing
    ours, theirs = _gradients_by_value(golden), _gradients_by_value(target)
    if not ours or not theirs:
        return {}, {}
    both = [(pair.golden, pair.target) for pair in pairs if pair.golden and pair.target]
    both.sort(key=lambda keys: is_at_maker(*keys))
    partner = {golden.first(one): target.first(other) for one, other in both}
    known = {
        one: other
        for one, other in partner.items()
        if one.slot.is_gradient and other in target.values  # not all that is shared is listed
    }
    there: dict[Key | None, Key] = {}
    back: dict[Key | None, Key] = {}
    for value, tensors in ours.items():
        others = theirs.get(partner[value], {}) if value in partner else {}
        for one, other in _same_tensors(sweep, tensors, others, known):
            there |= dict.fromkeys(tensors[one], other)
            back |= dict.fromkeys(others.get(other, ()), one)
    return there, back


def _same_tensors(
    sweep: Sweep, golden: Iterable[Key], target: Iterable[Key], known: Mapping[Key, Key]
) -> Iterator[tuple[Key, Key]]:
    """The gradients of the tensors that are one value: a tensor, and views that show all of it.

    Each has its own, and calls that are partners may tell which they are. Of the others, what was
    taken first is the tensor itself; its views are known by the same bytes, or one after another
    where both sides have as many.
    """
    all_ours, all_theirs = list(golden), list(target)
    told = {one: known[one] for one in all_ours if one in known}
    ours = [one for one in all_ours if one not in told]
    theirs = [other for other in all_theirs if other not in told.values()]
    found = list(zip(ours, theirs, strict=False))
    if len(ours) != len(theirs):
        is_itself = ours[:1] == all_ours[:1] and theirs[:1] == all_theirs[:1]
        first = found[:1] if is_itself else []
        found = first + _same_bytes(sweep, ours[len(first) :], theirs[len(first) :])
    found += told.items()
    yield from ((one, other) for one, other in found if sweep.sides.fit(one, other))


def _same_bytes(
    sweep: Sweep, golden: Sequence[Key], target: Sequence[Key]
) -> list[tuple[Key, Key]]:
    contents = {content_of(sweep.theirs.listing.record(key)): key for key in target}
    contents.pop(None, None)
    found = ((key, contents.get(content_of(sweep.ours.listing.record(key)))) for key in golden)
    return [(key, other) for key, other in found if other is not None]


def _gradients_by_value(listing: Listing) -> dict[Key, dict[Key, list[Key]]]:
    """The gradients of each value, by its first appearance and by that of the gradient.

    Of what was selected: where the first appearance was not, it is the next.
    """
    found: dict[Key, dict[Key, list[Key]]] = {}
    for key in listing.values:
        if key.slot.is_gradient and key.slot.kind != "grad":
            value = key.site.key(key.slot.value)
            if value in listing.values:
                tensors = found.setdefault(listing.first(value), {})
                tensors.setdefault(listing.first(key), []).append(key)
    return {
        value: {
            first if first in listing.values else keys[0]: keys for first, keys in tensors.items()
        }
        for value, tensors in found.items()
    }
