"""Finds for every value of either run its partner in the other, from names and order alone.

Calls find each other first, in passes, each over what the former left; then their slots do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest

from dumpcmp.align.fused import by_provenance
from dumpcmp.align.order import aligned
from dumpcmp.align.renaming import Renaming, family_of, split_op, unwrapped
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call, Record


@dataclass(frozen=True)
class Listing:
    """What one archive holds, as its index tells: each value once for every rank that has it."""

    values: Mapping[Key, tuple[Record, ...]]
    calls: Mapping[Site, Call] = field(default_factory=dict)

    @cached_property
    def places(self) -> dict[Site, list[Key]]:
        """The values of each call; calls in order of execution, models in order of appearance."""
        found: dict[Site, list[Key]] = defaultdict(list)
        for key in self.values:
            found[key.site].append(key)
        for place, call in self.calls.items():
            if call.kernel:  # fused: it has no values of its own, but it ran
                found.setdefault(place, [])
        models = {model: i for i, model in enumerate(dict.fromkeys(p.model for p in found))}

        def where(item: tuple[Site, list[Key]]) -> tuple[int, int, int]:
            place, keys = item
            order = self.order(keys[0]) if keys else self.calls[place].order
            return models[place.model], place.step, order

        return dict(sorted(found.items(), key=where))

    def seen_in(self, key: Key) -> str:
        """Where a compiled run saw a value that its kernels do not store; empty elsewhere."""
        return self.values[key][0].seen_in

    def order(self, key: Key) -> int:
        """Position of a value's call in its step."""
        return self.values[key][0].order


@dataclass(frozen=True, slots=True)
class Match:
    """A value of golden and its partner, or one of them alone; `by` names the pass."""

    golden: Key | None
    target: Key | None
    by: str = ""
    inside: str = ""  # of one alone: the kernel of a compiled target that it is a part of


Name = Callable[[str], str | None]  # what an op is to be called in a pass; None leaves it out


@dataclass
class _Sides:
    """Which calls have found each other, and which are left on either side."""

    golden: Listing
    target: Listing
    renaming: Renaming
    terms: dict[Site, Site]  # the target's calls with golden's names of model and step
    partner: dict[Site, Site] = field(default_factory=dict)  # golden's call -> the target's
    passes: dict[Site, str] = field(default_factory=dict)  # golden's call -> its pass
    taken: set[Site] = field(default_factory=set)  # the target's calls that have a partner

    def pair(self, golden: Site, target: Site, by: str) -> None:
        self.partner[golden], self.passes[golden] = target, by
        self.taken.add(target)

    def golden_left(self) -> list[Site]:
        return [place for place in self.golden.places if place not in self.partner]

    def target_left(self) -> list[Site]:
        return [place for place in self.target.places if place not in self.taken]

    def kernel_of(self, match: Match) -> str:
        """The kernel in which a compiled target computes the call of `match`."""
        place = match.target.site if match.target else None
        if place is None and match.golden:
            place = self.partner.get(match.golden.site)
        call = self.target.calls.get(place) if place else None
        return call.kernel if call else ""

    def golden_name(self, op: str) -> str:
        """What golden's `op` would be called in the target."""
        return self.renaming.renamed(op) or unwrapped(op)


def match(
    golden: Listing, target: Listing, renaming: Renaming | None = None, token_offset: int = 0
) -> list[Match]:
    """Pair the values of both runs, in order of execution; none is left out.

    `token_offset` is added to the target's steps, for runs that count their tokens from 1. What
    only frames a value that is paired, such as a wrapper, is laid beside its partner once more:
    of each Match either golden or the target is in no other.
    """
    renaming = renaming or Renaming()
    sides = _Sides(golden, target, renaming, _in_golden_terms(golden, target, token_offset))
    _by_name(sides, "key", lambda op: None if renaming.renamed(op) else op, lambda op: op)
    _by_name(sides, "prefix", lambda op: None if renaming.renamed(op) else unwrapped(op), unwrapped)
    _by_name(sides, "mapping", renaming.renamed, unwrapped)
    _by_order(sides)
    _by_name(sides, "key", sides.golden_name, unwrapped, same_number=False)
    matches = list(_framed(sides, [*_paired_values(sides), *_left_values(sides)]))
    if any(call.kernel for call in target.calls.values()):
        seen_in = target.seen_in
        matches = list(by_provenance(matches, partial(_first, golden), sides.kernel_of, seen_in))
    return _in_order(sides, matches)


def _in_golden_terms(golden: Listing, target: Listing, token_offset: int) -> dict[Site, Site]:
    """The target's calls by golden's names of models and steps; one model on each side pairs."""
    ours = dict.fromkeys(place.model for place in golden.places)
    theirs = dict.fromkeys(place.model for place in target.places)
    names = {model: model for model in theirs}
    alone = [m for m in ours if m not in theirs], [m for m in theirs if m not in ours]
    if len(alone[0]) == len(alone[1]) == 1:
        names[alone[1][0]] = alone[0][0]
    return {
        place: place._replace(model=names[place.model], step=place.step + token_offset)
        for place in target.places
    }


def _by_name(
    sides: _Sides, by: str, golden_name: Name, target_name: Name, same_number: bool = True
) -> None:
    """Pair the calls that are left and have the same name, step and number.

    Where an op ran more often on one side, its numbers say nothing: `same_number` leaves such
    calls to their order among the others.
    """
    golden = _named(((place, place) for place in sides.golden_left()), golden_name)
    target = _named(((place, sides.terms[place]) for place in sides.target_left()), target_name)
    for name, calls in golden.items():
        others = target.get(name, {})
        if same_number and len(calls) != len(others):
            continue
        for number in calls.keys() & others.keys():
            if len(calls[number]) == len(others[number]) == 1:
                sides.pair(calls[number][0], others[number][0], by)


def _named(
    places: Iterator[tuple[Site, Site]], name: Name
) -> dict[tuple[str, int, str], dict[int, list[Site]]]:
    """Calls by (model, step, name) and by their number; each place is given with its terms."""
    found: dict[tuple[str, int, str], dict[int, list[Site]]] = {}
    for place, terms in places:
        op = name(terms.op)
        if op is not None:
            calls = found.setdefault((terms.model, terms.step, op), {})
            calls.setdefault(terms.call, []).append(place)
    return found


def _by_order(sides: _Sides) -> None:
    """Pair what is left by its order among the calls of the same module."""
    golden = _families(sides.golden.places, lambda place: place, sides.golden_name)
    target = _families(sides.target.places, lambda place: sides.terms[place], unwrapped)
    waiting = {
        family
        for family, calls in golden.items()
        if any(place not in sides.partner for place, _ in calls)
    }
    for family in (family for family in golden if family in waiting & target.keys()):
        _align_family(sides, golden[family], target[family])


Family = list[tuple[Site, str]]  # the calls inside one module, and their names there


def _families(
    places: Mapping[Site, list[Key]],
    terms: Callable[[Site], Site],
    name: Callable[[str], str],
) -> dict[tuple[str, int, str], Family]:
    found: dict[tuple[str, int, str], Family] = defaultdict(list)
    for place in places:
        there = terms(place)
        path, child = family_of(name(there.op))
        found[there.model, there.step, path].append((place, child))
    return found


def _align_family(sides: _Sides, golden: Family, target: Family) -> None:
    position = {place: j for j, (place, _) in enumerate(target)}
    partners = ((i, sides.partner.get(place)) for i, (place, _) in enumerate(golden))
    anchors = [(i, position[p]) for i, p in partners if p is not None and p in position]

    def weigh(i: int, j: int) -> int:
        (here, name), (there, other) = golden[i], target[j]
        if name != other or here in sides.partner or there in sides.taken:
            return 0
        return _likeness(sides, here, there)

    for i, j in aligned((len(golden), len(target)), anchors, weigh):
        sides.pair(golden[i][0], target[j][0], "order")


def _likeness(sides: _Sides, golden: Site, target: Site) -> int:
    """How alike two calls of one function are; 0 where their outputs have other shapes."""
    ours = {key.slot: sides.golden.values[key][0] for key in sides.golden.places[golden]}
    theirs = {key.slot: sides.target.values[key][0] for key in sides.target.places[target]}
    weight = 16 + (golden.call == target.call)
    for slot in ours.keys() & theirs.keys():
        one, other = ours[slot], theirs[slot]
        if slot.startswith("output") and one.shape != other.shape:
            return 0
        weight += 2 * (one.dtype == other.dtype)
        weight += 8 * (one.digest == other.digest != "")
    return weight


def _paired_values(sides: _Sides) -> Iterator[Match]:
    """The slots of calls that found each other: same names first, then the same kind in order."""
    for place, partner in sides.partner.items():
        by = sides.passes[place]
        theirs = {key.slot: key for key in sides.target.places[partner]}
        ours = {key.slot: key for key in sides.golden.places[place]}
        for slot in [slot for slot in ours if slot in theirs]:
            yield Match(ours.pop(slot), theirs.pop(slot), by)
        kinds = dict.fromkeys(slot.partition(".")[0] for slot in (*ours, *theirs))
        for kind in kinds:
            left = [key for slot, key in ours.items() if slot.partition(".")[0] == kind]
            right = [key for slot, key in theirs.items() if slot.partition(".")[0] == kind]
            for one, other in zip_longest(left, right):
                yield from _maybe(sides, one, other)


def _maybe(sides: _Sides, golden: Key | None, target: Key | None) -> Iterator[Match]:
    """A pair where both are there and of one shape, else each alone."""
    if golden and target:
        one, other = sides.golden.values[golden][0], sides.target.values[target][0]
        if one.shape == other.shape:
            yield Match(golden, target, "order")
            return
    if golden:
        yield Match(golden, None)
    if target:
        yield Match(None, target)


def _left_values(sides: _Sides) -> Iterator[Match]:
    """The values of calls without a partner."""
    yield from (Match(key, None) for p in sides.golden_left() for key in sides.golden.places[p])
    yield from (Match(None, key) for p in sides.target_left() for key in sides.target.places[p])


def _framed(sides: _Sides, matches: list[Match]) -> Iterator[Match]:
    """`matches`; values that stand alone and only frame others, beside the partners of those.

    A module computes nothing itself: what it takes and gives are values of the functions in it, so
    a side that shows no modules has them all the same. A wrapper shows its module's values again.
    """
    pairs = [match for match in reversed(matches) if match.golden and match.target]
    ours = {_first(sides.golden, m.golden): m.target for m in pairs if m.golden}
    theirs = {_first(sides.target, m.target): m.golden for m in pairs if m.target}
    for match in matches:
        golden, target = match.golden, match.target
        if golden and not target and _is_frame(golden):
            target = ours.get(_first(sides.golden, golden))
        elif target and not golden and _is_frame(target):
            golden = theirs.get(_first(sides.target, target))
        yield (
            match
            if golden is match.golden and target is match.target
            else Match(golden, target, "value")
        )


def _is_frame(key: Key) -> bool:
    return not split_op(key.op)[1]


def _first(listing: Listing, key: Key) -> Key:
    """The first appearance in its run of the value that `key` is."""
    return listing.values[key][0].same_as or key


def _in_order(sides: _Sides, matches: list[Match]) -> list[Match]:
    """`matches` in golden's execution order; what only the target has after what it followed."""
    position = {place: i for i, place in enumerate(sides.golden.places)}
    models = list(dict.fromkeys(p.model for p in (*sides.golden.places, *sides.terms.values())))
    partner = {target: golden for golden, target in sides.partner.items()}
    follows: dict[Site, tuple[int, int]] = {}
    last: dict[tuple[str, int], int] = {}
    for n, (place, terms) in enumerate(sides.terms.items()):
        step = terms.model, terms.step
        if place in partner:
            last[step] = max(last.get(step, -1), position[partner[place]])
        follows[place] = last.get(step, -1), n

    def where(match: Match) -> tuple[int, int, int, int]:
        if match.golden and match.golden.site in position:
            place = match.golden.site
            return models.index(place.model), place.step, position[place], -1
        assert match.target is not None
        place = match.target.site
        terms = sides.terms[place]
        return models.index(terms.model), terms.step, *follows[place]

    slots = {
        key: i for listing in (sides.golden, sides.target) for i, key in enumerate(listing.values)
    }
    return sorted(matches, key=lambda m: (*where(m), slots[m.golden or m.target]))  # type: ignore[index]
