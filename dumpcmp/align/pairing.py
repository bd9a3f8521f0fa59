"""Finds for every value of either run its partner in the other, from names and order alone.

Calls find each other first, in passes, each over what the former left; then their slots do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.deliveries import without_collectives
from dumpcmp.align.order import aligned
from dumpcmp.align.passes import by_provenance, with_collectives
from dumpcmp.align.renaming import Renaming, unwrapped
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.row import Pair, PairedBy

Naming = Callable[[Op], str | None]  # what an op is to be called in a pass; None leaves it out


@dataclass
class _Partners:
    """Which calls have found each other, and which are left on either side."""

    golden: Listing
    target: Listing
    renaming: Renaming
    terms: dict[Site, Site]  # the target's calls with golden's names of model and step
    partner: dict[Site, Site] = field(default_factory=dict)  # golden's call -> the target's
    passes: dict[Site, PairedBy] = field(default_factory=dict)  # golden's call -> its pass
    taken: set[Site] = field(default_factory=set)  # the target's calls that have a partner

    def pair(self, golden: Site, target: Site, by: PairedBy) -> None:
        self.partner[golden], self.passes[golden] = target, by
        self.taken.add(target)

    def golden_left(self) -> list[Site]:
        return [site for site in self.golden.sites if site not in self.partner]

    def target_left(self) -> list[Site]:
        return [site for site in self.target.sites if site not in self.taken]

    def kernel_of(self, pair: Pair) -> str:
        """The kernel in which a compiled target computes the call of `pair`."""
        site = pair.target.site if pair.target else None
        if site is None and pair.golden:
            site = self.partner.get(pair.golden.site)
        call = self.target.calls.get(site) if site else None
        return call.kernel if call else ""

    def unmapped(self, op: Op) -> Op | None:
        """Golden's `op`, where the user does not say what it is called in the target."""
        return None if self.renaming.renamed(op) else op

    def golden_name(self, op: Op) -> str:
        """What golden's `op` would be called in the target."""
        return self.renaming.renamed(op) or unwrapped(op)


def pair_values(
    golden: Listing, target: Listing, renaming: Renaming | None = None, token_offset: int = 0
) -> list[Pair]:
    """Pair the values of both runs, in order of execution; none is left out.

    `token_offset` is added to the target's steps, for runs that count their tokens from 1. The
    collectives of partitioned runs stand beside what they moved.
    """
    if golden.num_ranks == target.num_ranks == 1:
        pairs = _pair_model(golden, target, renaming or Renaming(), token_offset)
    else:
        ours, theirs = without_collectives(golden), without_collectives(target)
        pairs = _pair_model(ours, theirs, renaming or Renaming(), token_offset)
        pairs = with_collectives(pairs, golden, target)
    return _with_repeats(pairs, golden, target)


def _pair_model(
    golden: Listing, target: Listing, renaming: Renaming, token_offset: int
) -> list[Pair]:
    """Pair what the model computed.

    What only frames a value that is paired, such as a wrapper, is laid beside its partner once
    more: of each Pair either golden or the target is in no other.
    """
    sides = _Partners(golden, target, renaming, _in_golden_terms(golden, target, token_offset))
    _by_name(sides, PairedBy.KEY, sides.unmapped, lambda op: op)
    _by_name(sides, PairedBy.PREFIX, lambda op: sides.unmapped(op) and unwrapped(op), unwrapped)
    _by_name(sides, PairedBy.MAPPING, renaming.renamed, unwrapped)
    _by_order(sides)
    _by_name(sides, PairedBy.KEY, sides.golden_name, unwrapped, same_number=False)
    pairs = list(_framed(sides, [*_paired_values(sides), *_left_values(sides)]))
    if any(call.kernel for call in target.calls.values()):
        pairs = list(by_provenance(pairs, golden, target, sides.kernel_of))
    return _in_order(sides, pairs)


def _in_golden_terms(golden: Listing, target: Listing, token_offset: int) -> dict[Site, Site]:
    """The target's calls by golden's names of models and steps; one model on each side pairs."""
    ours = dict.fromkeys(site.model for site in golden.sites)
    theirs = dict.fromkeys(site.model for site in target.sites)
    names = {model: model for model in theirs}
    alone = [m for m in ours if m not in theirs], [m for m in theirs if m not in ours]
    if len(alone[0]) == len(alone[1]) == 1:
        names[alone[1][0]] = alone[0][0]
    return {
        site: site._replace(model=names[site.model], step=site.step + token_offset)
        for site in target.sites
    }


def _by_name(
    sides: _Partners,
    by: PairedBy,
    golden_name: Naming,
    target_name: Naming,
    same_number: bool = True,
) -> None:
    """Pair the calls that are left and have the same name, step and number.

    Where an op ran more often on one side, its numbers say nothing: `same_number` leaves such
    calls to their order among the others.
    """
    golden = _named(((site, site) for site in sides.golden_left()), golden_name)
    target = _named(((site, sides.terms[site]) for site in sides.target_left()), target_name)
    for name, calls in golden.items():
        others = target.get(name, {})
        if same_number and len(calls) != len(others):
            continue
        for number in calls.keys() & others.keys():
            if len(calls[number]) == len(others[number]) == 1:
                sides.pair(calls[number][0], others[number][0], by)


def _named(
    sites: Iterable[tuple[Site, Site]], name: Naming
) -> dict[tuple[str, int, str], dict[int, list[Site]]]:
    """Calls by (model, step, name) and by their number; each is given with its terms."""
    found: dict[tuple[str, int, str], dict[int, list[Site]]] = {}
    for site, terms in sites:
        op = name(terms.op)
        if op is not None:
            calls = found.setdefault((terms.model, terms.step, op), {})
            calls.setdefault(terms.call, []).append(site)
    return found


def _by_order(sides: _Partners) -> None:
    """Pair what is left by its order among the calls of the same module."""
    golden = _families(((site, site) for site in sides.golden.sites), sides.golden_name)
    target = _families(sides.terms.items(), unwrapped)
    for family, calls in golden.items():
        if family in target and any(site not in sides.partner for site, _ in calls):
            _align_family(sides, calls, target[family])


Family = list[tuple[Site, str]]  # the calls inside one module, and their names there


def _families(
    sites: Iterable[tuple[Site, Site]], name: Callable[[Op], str]
) -> dict[tuple[str, int, str], Family]:
    found: dict[tuple[str, int, str], Family] = defaultdict(list)
    for site, terms in sites:
        path, child = Op(name(terms.op)).family
        found[terms.model, terms.step, path].append((site, child))
    return found


def _align_family(sides: _Partners, golden: Family, target: Family) -> None:
    position = {site: j for j, (site, _) in enumerate(target)}
    partners = ((i, sides.partner.get(site)) for i, (site, _) in enumerate(golden))
    anchors = [(i, position[p]) for i, p in partners if p is not None and p in position]

    def weigh(i: int, j: int) -> int:
        (here, name), (there, other) = golden[i], target[j]
        if name != other or here in sides.partner or there in sides.taken:
            return 0
        return _likeness(sides, here, there)

    for i, j in aligned((len(golden), len(target)), anchors, weigh):
        sides.pair(golden[i][0], target[j][0], PairedBy.ORDER)


def _likeness(sides: _Partners, golden: Site, target: Site) -> int:
    """How alike two calls of one function are; 0 where their outputs have other shapes."""
    ours = {key.slot: sides.golden.record(key) for key in sides.golden.sites[golden]}
    theirs = {key.slot: sides.target.record(key) for key in sides.target.sites[target]}
    weight = 16 + (golden.call == target.call)
    for slot in ours.keys() & theirs.keys():
        one, other = ours[slot], theirs[slot]
        if slot.is_output and one.shape != other.shape:
            return 0
        weight += 2 * (one.dtype == other.dtype)
        weight += 8 * (one.digest == other.digest != "")
    return weight


def _paired_values(sides: _Partners) -> Iterator[Pair]:
    """The slots of calls that found each other: same names first, then the same kind in order."""
    for site, partner in sides.partner.items():
        by = sides.passes[site]
        theirs = {key.slot: key for key in sides.target.sites[partner]}
        ours = {key.slot: key for key in sides.golden.sites[site]}
        for slot in [slot for slot in ours if slot in theirs]:
            yield Pair(ours.pop(slot), theirs.pop(slot), by)
        for kind in dict.fromkeys(slot.kind for slot in (*ours, *theirs)):
            left = [key for slot, key in ours.items() if slot.kind == kind]
            right = [key for slot, key in theirs.items() if slot.kind == kind]
            for one, other in zip_longest(left, right):
                yield from _maybe(sides, one, other)


def _maybe(sides: _Partners, golden: Key | None, target: Key | None) -> Iterator[Pair]:
    """A pair where both are there and of one shape, else each alone."""
    if golden and target and sides.golden.record(golden).shape == sides.target.record(target).shape:
        yield Pair(golden, target, PairedBy.ORDER)
        return
    if golden:
        yield Pair(golden, None)
    if target:
        yield Pair(None, target)


def _left_values(sides: _Partners) -> Iterator[Pair]:
    """The values of calls without a partner."""
    yield from (Pair(key, None) for s in sides.golden_left() for key in sides.golden.sites[s])
    yield from (Pair(None, key) for s in sides.target_left() for key in sides.target.sites[s])


def _framed(sides: _Partners, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """`pairs`; values that stand alone and only frame others, beside the partners of those.

    A module computes nothing itself: what it takes and gives are values of the functions in it, so
    a side that shows no modules has them all the same. A wrapper shows its module's values again.
    """
    both = [pair for pair in reversed(pairs) if pair.both]
    ours = {sides.golden.first(pair.golden): pair.target for pair in both if pair.golden}
    theirs = {sides.target.first(pair.target): pair.golden for pair in both if pair.target}
    for pair in pairs:
        golden, target = pair.golden, pair.target
        if golden and not target and golden.op.is_module:
            target = ours.get(sides.golden.first(golden))
        elif target and not golden and target.op.is_module:
            golden = theirs.get(sides.target.first(target))
        framed = golden is not pair.golden or target is not pair.target
        yield Pair(golden, target, PairedBy.VALUE) if framed else pair


def _in_order(sides: _Partners, pairs: Sequence[Pair]) -> list[Pair]:
    """`pairs` in golden's execution order; what only the target has after what it followed."""
    position = {site: i for i, site in enumerate(sides.golden.sites)}
    names = dict.fromkeys(site.model for site in (*sides.golden.sites, *sides.terms.values()))
    models = {model: i for i, model in enumerate(names)}
    partner = {target: golden for golden, target in sides.partner.items()}
    follows: dict[Site, tuple[int, int]] = {}
    last: dict[tuple[str, int], int] = {}
    for n, (site, terms) in enumerate(sides.terms.items()):
        step = terms.model, terms.step
        if site in partner:
            last[step] = max(last.get(step, -1), position[partner[site]])
        follows[site] = last.get(step, -1), n
    slots = {
        key: i for listing in (sides.golden, sides.target) for i, key in enumerate(listing.values)
    }

    def where(pair: Pair) -> tuple[int, int, int, int, int]:
        site = pair.key.site
        if pair.golden:
            return models[site.model], site.step, position[site], -1, slots[pair.key]
        terms = sides.terms[site]
        return models[terms.model], terms.step, *follows[site], slots[pair.key]

    return sorted(pairs, key=where)


def _with_repeats(pairs: Sequence[Pair], golden: Listing, target: Listing) -> list[Pair]:
    """`pairs`, which know where they first appeared, if both sides had the value before."""
    ours = {pair.golden: pair for pair in pairs if pair.golden}
    theirs = {pair.target: pair for pair in pairs if pair.target}
    first: dict[Pair, Pair] = {}
    for pair in pairs:
        before = golden.links.get(pair.golden) if pair.golden else None
        beside = target.links.get(pair.target) if pair.target else None
        found = ours.get(before) if before else None
        other = theirs.get(beside) if beside else None
        if found is not None and found is other is not pair:
            first[pair] = found
    return [
        replace(pair, repeats=first[pair]) if pair in first and first[pair] not in first else pair
        for pair in pairs
    ]
