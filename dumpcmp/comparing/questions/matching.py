"""Matches the values of two runs: by what they are in float64, then by names and order.

Calls match first, then their slots. What is one quantity in float64 is one value, whatever it is
called; names tell which of several, and match what is not the same on both sides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from dumpcmp.align.listing import Listing
from dumpcmp.align.merging import with_merged
from dumpcmp.align.order import aligned
from dumpcmp.align.renaming import Renaming, unwrapped
from dumpcmp.comparing.questions.matching_parts import PartMatching
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.op_names import canonical
from dumpcmp.nouns.row import Pair, PairedBy
from dumpcmp.shadows.quantities import Quantity

_FamilyCalls = Sequence[tuple[Site, str]]  # of one module, with what they are called there
QuantityOf = Callable[[Key], Hashable | None]  # what a value is in float64; None: nobody knows


@dataclass(frozen=True)
class MatchedRun:
    """One run, as matching sees it."""

    listing: Listing
    quantity: QuantityOf
    terms: Mapping[Site, Site]  # each call with golden's names of its model and step
    sole: Callable[[Key], Quantity | None] = lambda _: None  # the numbers of what lies whole
    is_put_aside: Callable[[Key], bool] = lambda _: False  # whoever takes it is not recorded


def match_values(
    golden: MatchedRun,
    target: MatchedRun,
    renaming: Renaming,
    stated: Sequence[Pair] = (),
    parted: Sequence[tuple[Site | None, Site]] = (),
) -> list[Pair]:
    """Every value of both runs in a Pair, in order of execution.

    `stated` are pieces of values, and their places, as a mapping has them; `parted` are calls of
    golden's and of the target's at which their programs part.
    """
    matching = _Matching(golden, target, renaming, stated, parted)
    matching.match_calls()
    return matching.pairs()


@dataclass
class _Matching:
    golden: MatchedRun
    target: MatchedRun
    renaming: Renaming
    stated: Sequence[Pair] = ()
    parted: Sequence[tuple[Site | None, Site]] = ()
    matched: dict[Site, Site] = field(default_factory=dict)  # golden's call: the target's
    by: dict[Site, PairedBy] = field(default_factory=dict)  # golden's call: how it was found
    taken: set[Site] = field(default_factory=set)  # the target's calls that are matched
    alone: set[Site] = field(default_factory=set)  # the target's calls like which golden has none
    stood_for: set[Site] = field(default_factory=set)  # golden's calls that others stand for

    # calls

    def match_calls(self) -> None:
        self._by_name(lambda here, there: self._are_same(here, there) or self._is_module(here))
        self._by_quantity()
        self._where_parted()
        self._by_name(self._may_be_same)
        self._by_order()
        self._by_name(self._are_put_aside)

    def _match(self, here: Site, there: Site, by: PairedBy) -> None:
        self.matched[here], self.by[here] = there, by
        self.taken.add(there)

    def _golden_name(self, op: Op) -> str:
        return self.renaming.renamed(op) or unwrapped(op)

    def _by_name(self, accepts: Callable[[Site, Site], bool]) -> None:
        """Match calls of one name and number, where both sides have one."""
        named: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        for there, terms in self.target.terms.items():
            if there not in self.taken:
                named[terms.model, terms.step, unwrapped(terms.op), terms.call].append(there)
        for here in self.golden.listing.sites:
            if here in self.matched:
                continue
            found = named.get((here.model, here.step, self._golden_name(here.op), here.call), [])
            if len(found) == 1 and found[0] not in self.taken and accepts(here, found[0]):
                self._match(here, found[0], self._named_by(here, found[0]))

    def _named_by(self, here: Site, there: Site) -> PairedBy:
        if self.renaming.renamed(here.op):
            return PairedBy.MAPPING
        return PairedBy.KEY if here.op == self.target.terms[there].op else PairedBy.PREFIX

    def _is_module(self, site: Site) -> bool:
        return site.op.is_module or site.op.is_effect

    def _given_out(self, run: MatchedRun, site: Site) -> tuple[Hashable, ...] | None:
        """What a call gives out; None where that is not known, or is nothing."""
        keys = [key for key in run.listing.sites.get(site, ()) if key.slot.is_output]
        found = tuple(run.quantity(key) for key in sorted(keys, key=lambda key: key.slot))
        return found if found and None not in found else None

    def _are_same(self, here: Site, there: Site) -> bool:
        one = self._given_out(self.golden, here)
        return one is not None and one == self._given_out(self.target, there)

    def _by_quantity(self) -> None:
        """Match functions that give the same, those of one module and function first."""
        ours = self._by_given_out(self.golden, self.golden.listing.sites, self.matched)
        theirs = self._by_given_out(self.target, self.target.terms, self.taken)
        for given, calls in ours.items():
            others = theirs.get((given), [])
            for is_alike in (self._have_one_place, self._have_one_function):
                for here in [call for call in calls if call not in self.matched]:
                    found = next(
                        (o for o in others if o not in self.taken and is_alike(here, o)), None
                    )
                    if found is not None:
                        by = PairedBy.ORDER if is_alike == self._have_one_place else PairedBy.VALUE
                        self._match(here, found, by)

    def _by_given_out(
        self, run: MatchedRun, sites: Iterable[Site], known: Iterable[Site]
    ) -> dict[tuple[Hashable, ...], list[Site]]:
        found: dict[tuple[Hashable, ...], list[Site]] = defaultdict(list)
        left = set(known)
        for site in sites:
            if site not in left and not self._is_module(site):
                given = self._given_out(run, site)
                if given is not None:
                    found[given].append(site)
        return found

    def _where_parted(self) -> None:
        """Match calls in whose stead the target has others, as its program shows."""
        for here, there in self.parted:
            if here is None:
                self.alone.add(there)
                continue
            is_free = here not in self.matched and there not in self.taken
            is_there = here in self.golden.listing.sites and there in self.target.terms
            if is_free and is_there and self._fit(here, there):
                self._match(here, there, PairedBy.ORDER)
                self.stood_for.add(here)

    def _have_one_function(self, here: Site, there: Site) -> bool:
        return canonical(here.op.function) == canonical(there.op.function)

    def _have_one_place(self, here: Site, there: Site) -> bool:
        scope = Op(self._golden_name(here.op)).scope
        is_near = scope == unwrapped(self.target.terms[there].op).scope
        return is_near and self._have_one_function(here, there)

    def _may_be_same(self, here: Site, there: Site) -> bool:
        """Whether two calls of one name may match that do not give the same."""
        return self._fit(here, there) and not self._give_what_others_do(here, there)

    def _give_what_others_do(self, here: Site, there: Site) -> bool:
        """Whether what one of two calls gives is known not to be what the other one does.

        Other functions of that run give it: it is a value that stands there under another name.
        """
        one, other = self._given_out(self.golden, here), self._given_out(self.target, there)
        if one is None or other is None or one == other:
            return False
        if self.golden.listing.num_ranks > 1 or self.target.listing.num_ranks > 1:
            return False  # ranks have parts of it
        step = here[:2]
        return (step, one) in self._given["target"] or (step, other) in self._given["golden"]

    @cached_property
    def _given(self) -> dict[str, set[tuple[tuple[str, int], tuple[Hashable, ...]]]]:
        """What functions give out in each of golden's steps, by side."""
        found: dict[str, set[tuple[tuple[str, int], tuple[Hashable, ...]]]] = {}
        for side, run in (("golden", self.golden), ("target", self.target)):
            given = (
                (terms[:2], self._given_out(run, site))
                for site, terms in run.terms.items()
                if not self._is_module(site)
            )
            found[side] = {(step, each) for step, each in given if each is not None}
        return found

    def _are_put_aside(self, here: Site, there: Site) -> bool:
        """Whether both are there for code that is not recorded, to which their shape may matter."""
        return self._gives_aside(self.golden, here) and self._gives_aside(self.target, there)

    def _gives_aside(self, run: MatchedRun, site: Site) -> bool:
        keys = [key for key in run.listing.sites.get(site, ()) if key.slot.is_output]
        return bool(keys) and all(map(run.is_put_aside, keys))

    def _fit(self, here: Site, there: Site) -> bool:
        """Whether what two calls give out has one form, as far as it lies whole."""
        sides = (self.golden.listing, here), (self.target.listing, there)
        ours, theirs = (
            {
                key.slot: listing.record(key).shape
                for key in listing.sites.get(site, ())
                if key.slot.is_output and len(listing.values[key]) == 1
            }
            for listing, site in sides
        )
        return all(ours[slot] == theirs[slot] for slot in ours.keys() & theirs.keys())

    def _by_order(self) -> None:
        """Match what is left by its place among the calls of one module."""
        ours, theirs = _families(self.golden, self._golden_name), _families(self.target, unwrapped)
        for family, calls in ours.items():
            others = theirs.get(family, [])
            if all(site in self.matched for site, _ in calls) or all(
                s in self.taken for s, _ in others
            ):
                continue
            place = {site: at for at, (site, _) in enumerate(others)}
            known = ((at, self.matched.get(site)) for at, (site, _) in enumerate(calls))
            anchors = [(at, place[other]) for at, other in known if other in place]
            weigh = partial(self._weight, calls, others)
            for i, j in aligned((len(calls), len(others)), anchors, weigh, None):
                self._match(calls[i][0], others[j][0], PairedBy.ORDER)

    def _weight(self, calls: _FamilyCalls, others: _FamilyCalls, i: int, j: int) -> int:
        """How much speaks for two calls of one family."""
        (here, name), (there, other) = calls[i], others[j]
        if name != other or here in self.matched or there in self.taken:
            return 0
        return (1 + (here.call == there.call)) if self._may_be_same(here, there) else 0

    # values

    def pairs(self) -> list[Pair]:
        """All values, by the calls that match, then each by what it is."""
        found: list[Pair] = []
        for here, there in self.matched.items():
            found += self._slots(here, there)
        ours = {pair.golden for pair in found}
        theirs = {pair.target for pair in found}
        found += self._shown_again(found)
        ours, theirs = {pair.golden for pair in found}, {pair.target for pair in found}
        found += self._by_value(ours, theirs)
        ours, theirs = {pair.golden for pair in found}, {pair.target for pair in found}
        found += self._parts(ours, theirs)
        ours, theirs = {pair.golden for pair in found}, {pair.target for pair in found}
        found += (Pair(key, None) for key in self.golden.listing.values if key not in ours)
        found += (Pair(None, key) for key in self.target.listing.values if key not in theirs)
        found = with_merged(self.stated, found) if self.stated else found
        return self._in_order(found)

    def _slots(self, here: Site, there: Site) -> Iterator[Pair]:
        """The slots of two calls: those that are the same, then those of one name."""
        by = self.by[here]
        ours = list(self.golden.listing.sites[here])
        theirs = list(self.target.listing.sites[there])
        matches = [self._is_same_slot, self._is_same_value]
        if here in self.stood_for or self._have_one_function(
            here, there
        ):  # what others take and give tells its value alone
            matches.append(self._is_named_alike)
        for is_one in matches:
            for key in list(ours):
                found = next((other for other in theirs if is_one(key, other)), None)
                if found is not None:
                    ours.remove(key)
                    theirs.remove(found)
                    yield Pair(key, found, by)

    def _is_same_slot(self, one: Key, other: Key) -> bool:
        quantity = self.golden.quantity(one)
        return self._is_named_alike(one, other) and (
            quantity is None or quantity == self.target.quantity(other)
        )

    def _is_same_value(self, one: Key, other: Key) -> bool:
        quantity = self.golden.quantity(one)
        is_known = quantity is not None and quantity == self.target.quantity(other)
        return is_known and one.slot.kind == other.slot.kind

    def _is_named_alike(self, one: Key, other: Key) -> bool:
        return one.slot == other.slot and not self._is_in_chunks(one, other)

    def _is_in_chunks(self, one: Key, other: Key) -> bool:
        """Whether one side calls a module more often, with less at a time."""
        sides = (self.golden.listing, one), (self.target.listing, other)
        if not one.op.is_module or one.slot.is_weight:
            return False
        if any(len(listing.values[key]) > 1 for listing, key in sides):
            return False
        ours, theirs = (listing.record(key).shape for listing, key in sides)
        counts = self._num_calls["golden"][one.site[:3]], self._num_calls["target"][other.site[:3]]
        return ours != theirs and counts[0] != counts[1]

    @cached_property
    def _num_calls(self) -> dict[str, Counter[tuple[str, int, Op]]]:
        """How often each op runs in a step, by side."""
        sides = {"golden": self.golden, "target": self.target}
        return {side: Counter(site[:3] for site in run.terms) for side, run in sides.items()}

    def _shown_again(self, pairs: Sequence[Pair]) -> Iterator[Pair]:
        """What is left and is a value that is matched under another name of it."""
        ours, theirs = {pair.golden for pair in pairs}, {pair.target for pair in pairs}
        others: dict[Hashable, Key] = {}
        its: dict[Hashable, Key] = {}
        for here, there in self._may_be_one(pairs):
            for name in self._names(self.golden, here):
                others.setdefault(name, there)
            for name in self._names(self.target, there):
                its.setdefault(name, here)
        for key in self.golden.listing.values:
            found = next(filter(None, map(others.get, self._names(self.golden, key))), None)
            if key not in ours and found is not None:
                yield Pair(key, found, PairedBy.VALUE)
        for key in self.target.listing.values:
            found = next(filter(None, map(its.get, self._names(self.target, key))), None)
            is_own = key.slot.is_output and key.site in self.alone
            if key not in theirs and found is not None and not is_own:
                yield Pair(found, key, PairedBy.VALUE)

    def _names(self, run: MatchedRun, key: Key) -> Iterator[Hashable]:
        """By what a value is known in its own run: the first that it is, and what it is."""
        yield run.listing.first(key)
        if (quantity := run.quantity(key)) is not None:
            yield self._step(key, run), quantity

    def _may_be_one(self, pairs: Iterable[Pair]) -> Iterator[tuple[Key, Key]]:
        """The two values of each pair that are not known to be two quantities."""
        for pair in pairs:
            if pair.golden is None or pair.target is None:
                continue
            one, other = self.golden.quantity(pair.golden), self.target.quantity(pair.target)
            is_spread = isinstance(one, tuple) is not isinstance(other, tuple)  # over ranks
            if one is None or other is None or one == other or is_spread:
                yield pair.golden, pair.target

    def _by_value(self, ours: set[Key | None], theirs: set[Key | None]) -> Iterator[Pair]:
        """What is left beside the other side's first value that is the same."""
        known = self._firsts(self.target), self._firsts(self.golden)
        for key in self.golden.listing.values:
            if key not in ours:
                found = known[0].get((self._step(key, self.golden), self.golden.quantity(key)))
                if found is not None:
                    yield Pair(key, found, PairedBy.VALUE)
        for key in self.target.listing.values:
            if key not in theirs:
                found = known[1].get((self._step(key, self.target), self.target.quantity(key)))
                if found is not None:
                    yield Pair(found, key, PairedBy.VALUE)

    def _parts(self, ours: set[Key | None], theirs: set[Key | None]) -> Iterator[Pair]:
        """What is left that is a part of what the other side alone has."""
        alone: dict[tuple[str, int], tuple[dict[Key, Quantity], dict[Key, Quantity]]] = {}
        for at, (run, known) in enumerate(((self.golden, ours), (self.target, theirs))):
            for key in run.listing.values:
                quantity = run.sole(key) if key not in known else None
                if quantity is not None and key.slot.is_output and not key.op.is_module:
                    alone.setdefault(self._step(key, run), ({}, {}))[at][key] = quantity
        for golden, target in alone.values():
            if golden and target:
                yield from PartMatching(golden, target).pairs()

    def _step(self, key: Key, run: MatchedRun) -> tuple[str, int]:
        return run.terms[key.site][:2]

    def _firsts(self, run: MatchedRun) -> dict[Hashable, Key]:
        found: dict[Hashable, Key] = {}
        for site in run.terms:
            for key in run.listing.sites.get(site, ()):
                quantity = run.quantity(key)
                if quantity is not None:
                    found.setdefault((self._step(key, run), quantity), key)
        return found

    def _in_order(self, pairs: Sequence[Pair]) -> list[Pair]:
        """As golden ran; what the target alone has after what it followed."""
        position = {site: at for at, site in enumerate(self.golden.listing.sites)}
        names = dict.fromkeys(
            site.model for site in (*self.golden.listing.sites, *self.target.terms.values())
        )
        models = {model: at for at, model in enumerate(names)}
        beside = {target: golden for golden, target in self.matched.items()}
        follows: dict[Site, tuple[int, int]] = {}
        last: dict[tuple[str, int], int] = {}
        for number, (site, terms) in enumerate(self.target.terms.items()):
            step = terms.model, terms.step
            if site in beside:
                last[step] = max(last.get(step, -1), position[beside[site]])
            follows[site] = last.get(step, -1), number
        slots = {
            key: at
            for run in (self.golden, self.target)
            for at, key in enumerate(run.listing.values)
        }

        def where(pair: Pair) -> tuple[int, int, int, int, int]:
            site = pair.key.site
            if pair.golden:
                return models[site.model], site.step, position[site], -1, slots[pair.key]
            terms = self.target.terms[site]
            return models[terms.model], terms.step, *follows[site], slots[pair.key]

        return sorted(pairs, key=where)


def _families(
    run: MatchedRun, name: Callable[[Op], str]
) -> dict[tuple[str, int, str], list[tuple[Site, str]]]:
    """The calls inside of each module, with what they are called there."""
    found: dict[tuple[str, int, str], list[tuple[Site, str]]] = defaultdict(list)
    for site, terms in run.terms.items():
        path, child = Op(name(terms.op)).family
        label = f"/{canonical(child[1:])}" if child.startswith("/") else child
        found[terms.model, terms.step, path].append((site, label))
    return found
