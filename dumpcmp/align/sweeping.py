"""The pass by data flow: calls that do the same to the same values are partners.

The target's calls are visited as they ran. What a call takes is known by then, if it came in from
outside with golden's bytes or was given out by a call that has its partner; golden's call that does
the same to the same values is looked up. Names and numbers decide where several do, and lead on
where the flow tells nothing. Each visit costs the same, so that a sweep is linear in the calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from dumpcmp.align.flow import Content, Doing, Expression, Flow, Strand
from dumpcmp.align.partners import Partners
from dumpcmp.align.pieces import part_lies
from dumpcmp.align.renaming import unwrapped
from dumpcmp.nouns.families import is_shaping
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.row import Pair, PairedBy

NamedOp = tuple[str, int, str]  # a model, a step, and the name of an op
Mated = Callable[[Strand], Strand | None]


@dataclass
class Sweep:
    """Two flows that are being laid upon each other."""

    sides: Partners
    ours: Flow
    theirs: Flow
    same: dict[Strand, Strand] = field(default_factory=dict)  # the target's strand -> golden's
    mates: dict[Strand, Strand] = field(default_factory=dict)  # golden's -> the target's
    _doing: dict[Expression, list[Site]] = field(default_factory=lambda: defaultdict(list))
    _lying: dict[Expression, Key] = field(default_factory=dict)  # golden's views, by how they lie
    _numbers: dict[NamedOp, dict[int, Site]] = field(default_factory=lambda: defaultdict(dict))
    _counts: Counter[NamedOp] = field(default_factory=Counter)  # how often the target has a name
    _scopes: dict[NamedOp, str] = field(default_factory=dict)  # the target's calls of modules

    @classmethod
    def of(cls, sides: Partners, merged: Sequence[Pair] = ()) -> Sweep:
        """Begin with what came in from outside, and with pieces of what one side has in one."""
        sweep = cls(sides, Flow.of(sides.golden), Flow.of(sides.target))
        sweep._index()
        sweep._begin()
        for golden, target in sides.partner.items():
            sweep._join_calls(golden, target)
        for pair in merged:
            sweep._join_part(pair)
        return sweep

    def _begin(self) -> None:
        """Join what came into a step with the same bytes."""
        ours: dict[tuple[str, int, Content], Strand] = {}
        for site, content, strand in self.ours.contents():
            ours.setdefault((site.model, site.step, content), strand)
        for site, content, strand in self.theirs.contents():
            terms = self.sides.terms[site]
            mate = ours.get((terms.model, terms.step, content))
            if mate is not None:
                self.join(mate, strand)

    def join_equal(self) -> int:
        """Join what both sides computed, each once, with the same bytes; how many found a mate.

        Two ways to a table of sines have no call in common, and what is made of it has.
        """
        ours = self._made(self.ours, lambda site: site, self.mates)
        theirs = self._made(self.theirs, self.sides.terms.__getitem__, self.same)
        found = [(ours[what], theirs[what]) for what in theirs if what in ours]
        for golden, target in found:
            self.join(golden, target)
        return len(found)

    def _made(
        self, flow: Flow, terms: Callable[[Site], Site], known: Container[Strand]
    ) -> dict[tuple[str, int, Content], Strand]:
        """The strands that a run computed and that have no mate yet, by their bytes."""
        found: dict[tuple[str, int, Content], Strand] = {}
        several = set()
        for site, content, strand in flow.results():
            if strand not in known:
                step = terms(site)
                what = (step.model, step.step, content)
                if found.setdefault(what, strand) != strand:
                    several.add(what)
        return {what: strand for what, strand in found.items() if what not in several}

    def _join_part(self, pair: Pair) -> None:
        """Know the views of a whole that are its pieces on the other side."""
        golden, target = pair.golden, pair.target
        if golden is None or target is None:
            return
        if not (golden.slot.is_output or golden.slot.is_weight):
            return
        ours, theirs = self.ours.strand(golden), self.theirs.strand(target)
        if pair.target_part is not None:
            whole = self.same.setdefault(theirs, -1 - theirs)  # golden has no such strand
            lie = part_lies(self.sides.target.record(target), pair.target_part)
            self._lying.setdefault((whole, lie), golden)
        elif pair.golden_part is not None:
            lie = part_lies(self.sides.golden.record(golden), pair.golden_part)
            piece = self._lying.get((self.ours.root(ours), lie))
            if piece is not None:
                self.join(self.ours.strand(piece), theirs)
        else:
            self.join(ours, theirs)

    def _index(self) -> None:
        for site in self.sides.golden.sites:
            name = (site.model, site.step, self.sides.golden_name(site.op))
            self._numbers[name].setdefault(site.call, site)
        for terms in self.sides.terms.values():
            self._counts[terms.model, terms.step, unwrapped(terms.op)] += 1
        for site, doing in self.ours.doings.items():
            for expression in self._expressions(self.ours, doing, site, lambda strand: strand):
                self._doing[expression].append(site)
            for key, base, lie in self.ours.geometries(site):
                shape = self.sides.golden.record(key).shape
                self._lying.setdefault((base, lie), key)
                self._lying.setdefault((base, lie, shape), key)

    def _expressions(
        self, flow: Flow, doing: Doing, terms: Site, known: Mated
    ) -> Iterator[Expression]:
        """What a call does, in golden's strands; nothing where it takes one that has no mate."""
        taken = _translated(doing.takes, known)
        if taken is not None:
            yield (terms.model, terms.step, doing.function, *taken)
        product = flow.contracted(doing) or ()
        factors = [(known(root), is_part) for root, is_part in product]
        if factors and all(root is not None for root, _ in factors):
            yield (terms.model, terms.step, "contract", *sorted(factors))

    def mate(self, strand: Strand) -> Strand | None:
        """Golden's strand that the target's `strand` is, if that is known."""
        return self.same.get(strand)

    def join(self, golden: Strand, target: Strand) -> None:
        """Let two strands be one, where the target's is not another one already."""
        self.same.setdefault(target, golden)
        self.mates.setdefault(golden, target)

    def run(self) -> int:
        """Visit the target's calls that are left; how many have found a partner."""
        before = len(self.sides.taken)
        for site, doing in self.theirs.doings.items():
            if site not in self.sides.taken:
                self._visit(site, doing)
        return len(self.sides.taken) - before

    def _visit(self, site: Site, doing: Doing) -> None:
        for key, base, lie in self.theirs.geometries(site):
            root = self.mate(base)
            found = None if root is None else self._lies_as(root, lie, key)
            if found is not None:
                self.join(self.ours.strand(found), self.theirs.strand(key))
        partner = self._same_doing(site, doing) or self._namesake(site, doing)
        if partner is not None:
            self.pair(partner, site)

    def _lies_as(self, root: Strand, lie: Expression, target: Key) -> Key | None:
        """Golden's view that shows the same: in the same shape, if there is one."""
        shape = self.sides.target.record(target).shape
        return self._lying.get((root, lie, shape)) or self._lying.get((root, lie))

    def pair(self, golden: Site, target: Site, by: PairedBy | None = None) -> None:
        """Let two calls be partners, and what they take and give the same strands."""
        if by is None:
            alike = self.sides.is_named_alike(golden, target)
            by = self.sides.by_name(golden, target) if alike else PairedBy.FLOW
        self.sides.pair(golden, target, by)
        self._join_calls(golden, target)
        self._join_scopes(golden, target)

    def _join_scopes(self, golden: Site, target: Site) -> None:
        """Where a module ran several times, in another order: which call is which."""
        terms = self.sides.terms[target]
        here, there = Op(self.sides.golden_name(golden.op)), unwrapped(terms.op)
        if here.scope != there.scope and here.module == there.module and not here.is_module:
            self._scopes.setdefault((terms.model, terms.step, there.scope), here.scope)

    def _name(self, target: Site) -> NamedOp:
        """What a call of the target would be called in golden."""
        terms = self.sides.terms[target]
        op = unwrapped(terms.op)
        if "@" in op or self._scopes:
            op = op.within(self._scopes.get((terms.model, terms.step, op.scope), op.scope))
        return terms.model, terms.step, op

    def _join_calls(self, golden: Site, target: Site) -> None:
        ours = {key.slot: key for key in self.sides.golden.sites[golden]}
        theirs = {key.slot: key for key in self.sides.target.sites[target]}
        same_function = golden.op.function == target.op.function
        for slot in ours.keys() & theirs.keys():
            one, other = self.ours.strand(ours[slot]), self.theirs.strand(theirs[slot])
            new = one not in self.mates and self.sides.fit(ours[slot], theirs[slot])
            new = new and self.sides.may_lead(ours[slot], theirs[slot])
            made = slot.is_output and not golden.op.is_module
            if made or (new and (slot.is_output or (same_function and slot.is_input))):
                self.join(one, other)

    def _same_doing(self, site: Site, doing: Doing, anywhere: bool = False) -> Site | None:
        """Golden's call that does the same to the same values; by name, where several do."""
        terms = self.sides.terms[site]
        found = (
            golden
            for expression in self._expressions(self.theirs, doing, terms, self.mate)
            for golden in self._doing.get(expression, ())
        )
        likely = [g for g in found if self._may_be(g, site, doing, anywhere)]
        return max(likely, key=lambda golden: self._nearness(golden, site, doing), default=None)

    def _may_be(self, golden: Site, target: Site, doing: Doing, anywhere: bool) -> bool:
        if golden in self.sides.partner or not self.sides.outputs_fit(golden, target):
            return False
        here, there = Op(self.sides.golden_name(golden.op)), unwrapped(self.sides.terms[target].op)
        other = self.ours.doings[golden]
        named = self.sides.is_named_alike(golden, target) and self._is_numbered(target)
        anywhere = anywhere and self.sides.unmapped(golden.op) is not None
        if not (anywhere or here.module == there.module) or not (named or self._asks(doing, other)):
            return False
        known = bool(doing.takes) or named or (doing.literals == other.literals != "")
        return known and not self._contradicts(doing.gives, other.gives)

    def _asks(self, one: Doing, other: Doing) -> bool:
        """Whether two calls ask for the same besides tensors; sizes of shards are their own."""
        partitioned = not self.sides.is_whole and is_shaping(one.function)
        return partitioned or _literally(one, other)

    def _contradicts(self, theirs: Iterable[Strand], ours: Iterable[Strand]) -> bool:
        """Whether any of the target's strands is known to be another one of golden's."""
        mates = [self.mate(strand) for strand in theirs]
        return any(m is not None and m != o for m, o in zip(mates, ours, strict=False))

    def _is_given(self, ours: Iterable[Strand], theirs: Iterable[Strand]) -> bool:
        """Whether another strand of the target is known to be one of golden's: of its module."""
        mates = [self.mates.get(strand) for strand in ours]
        return any(m is not None and m != t for m, t in zip(mates, theirs, strict=False))

    def _nearness(self, golden: Site, target: Site, doing: Doing) -> tuple[int, int]:
        """How much speaks for a call among those that do the same; at last the earlier one."""
        here, there = Op(self.sides.golden_name(golden.op)), unwrapped(self.sides.terms[target].op)
        one, other = self.sides.sources(golden, target)
        points = 8 * (self.ours.doings[golden].literals == doing.literals)
        points += 4 * (here == there) + 2 * (here.scope == there.scope) + 2 * (one == other != "")
        points += 1 * (golden.call == target.call)
        return points, -self.sides.golden.record(self.sides.golden.sites[golden][0]).order

    def _is_numbered(self, target: Site) -> bool:
        """Whether an op ran as often in golden, so that its number tells something."""
        terms = self.sides.terms[target]
        own = terms.model, terms.step, unwrapped(terms.op)
        return self._counts[own] == len(self._numbers.get(self._name(target), ()))

    def namesake(self, target: Site) -> Site | None:
        """Golden's call of the same name and number, where numbers tell something."""
        golden = self._numbers.get(self._name(target), {}).get(target.call)
        return golden if golden not in self.sides.partner and self._is_numbered(target) else None

    def _namesake(self, site: Site, doing: Doing) -> Site | None:
        golden = self.namesake(site)
        if golden is None or golden not in self.ours.doings:
            return None
        other = self.ours.doings[golden]
        known, wrong = self.agreement(other, doing)
        same = _is_all(known, other, doing)
        if not same and self._is_given(other.gives, doing.gives):
            return None
        asks = known and same and self.sides.are_as_batched(golden, site)
        fits = self.sides.outputs_fit(golden, site) or asks
        if not fits or (wrong and not known) or self._contradicts(doing.gives, other.gives):
            return None
        return golden if known or self._leave_alike(other.gives, doing.gives) else None

    def _leave_alike(self, ours: Iterable[Strand], theirs: Iterable[Strand]) -> bool:
        """Whether what two calls give leaves a module that both sides have, or neither does.

        Where something is added to what a call gives before it leaves, another call is meant.
        """
        mine, other = self.leaving
        return mine.isdisjoint(ours) is other.isdisjoint(theirs)

    @cached_property
    def leaving(self) -> tuple[frozenset[Strand], frozenset[Strand]]:
        """What modules give first that both sides have."""
        ours = {
            (site.model, site.step, str(self.sides.golden_name(site.op)), site.call): site
            for site in self.sides.golden.sites
            if site.op.is_module
        }
        theirs = {
            (terms.model, terms.step, str(unwrapped(terms.op)), terms.call): site
            for site, terms in self.sides.terms.items()
            if terms.op.is_module
        }
        both = ours.keys() & theirs.keys()
        given = (
            (self._given(flow, modules[name]) for name in both)
            for flow, modules in ((self.ours, ours), (self.theirs, theirs))
        )
        mine, other = (frozenset(chain.from_iterable(g[:1] for g in side)) for side in given)
        return mine, other

    def agreement(self, golden: Doing, target: Doing) -> tuple[int, int]:
        """Of how many strands that two calls take it is known that they are the same, or not."""
        pairs = [(self.mate(t), g) for g, t in zip(golden.takes, target.takes, strict=False)]
        known = sum(mate == own for mate, own in pairs)
        return known, sum(mate is not None for mate, _ in pairs) - known

    def weigh(self, golden: Site, target: Site, weight: int) -> int:
        """`weight`, by which two calls are alike, in the light of what they take and give."""
        if golden.op.is_module or target.op.is_module:
            return weight
        one, other = self.ours.doings[golden], self.theirs.doings[target]
        known, wrong = self.agreement(one, other)
        ours, theirs = self.sides.sources(golden, target)
        elsewhere = bool(ours and theirs and ours != theirs) and not _literally(one, other)
        if elsewhere or (wrong and not known) or self._contradicts(other.gives, one.gives):
            return 0
        if not _is_all(known, one, other) and self._is_given(one.gives, other.gives):
            return 0
        if not known and not self._leave_alike(one.gives, other.gives):
            return 0
        return weight + 8 * known + 8 * (ours == theirs != "") + 8 * _literally(one, other)

    def settle(self) -> None:
        """Pair what is left where nothing but its name or nothing but its doing speaks for it."""
        for site, doing in self.theirs.doings.items():
            if site in self.sides.taken:
                continue
            partner = self._same_doing(site, doing, anywhere=True) or self._same_line(site)
            if partner is not None:
                self.pair(partner, site)

    def _same_line(self, target: Site) -> Site | None:
        """Golden's call of the same name, number and line, whatever it takes."""
        golden = self.namesake(target)
        if golden is None or golden not in self.ours.doings:
            return None
        one, other = self.sides.sources(golden, target)
        return golden if one == other and self.sides.outputs_fit(golden, target) else None

    def pair_modules(self) -> None:
        """Pair the calls of modules: by name and number, but for those that gave other values."""
        left: dict[NamedOp, list[Site]] = defaultdict(list)
        for site in self.sides.target_left():
            if site.op.is_module:
                terms = self.sides.terms[site]
                left[terms.model, terms.step, unwrapped(terms.op)].append(site)
        for name, calls in left.items():
            numbers = self._numbers.get(name, {})
            golden = [site for site in numbers.values() if site not in self.sides.partner]
            self._pair_calls_of_module(golden, calls)

    def _pair_calls_of_module(self, golden: Sequence[Site], target: Sequence[Site]) -> None:
        gave: dict[frozenset[Strand | None], Site] = {
            frozenset(self._given(self.ours, site)): site for site in reversed(golden)
        }
        waiting = []
        for site in target:
            mates = frozenset(self.mate(strand) for strand in self._given(self.theirs, site))
            partner = gave.pop(mates, None) if mates and len(golden) > 1 else None
            if partner is not None:
                self.pair(partner, site)
            else:
                waiting.append(site)
        left = [site for site in golden if site not in self.sides.partner]
        numbered = {site.call: site for site in left}
        for n, site in enumerate(waiting):
            same_number = numbered.get(self.sides.terms[site].call)
            partner = left[n] if len(left) == len(waiting) else same_number
            if partner is not None:
                self.pair(partner, site)

    def _given(self, flow: Flow, site: Site) -> list[Strand]:
        return [flow.strand(key) for key in flow.listing.sites[site] if key.slot.is_output]


def _translated(strands: Sequence[Strand], known: Mated) -> list[Strand] | None:
    """Golden's strands for others, in the order of golden's; None where one is not known."""
    found = [mate for strand in strands if (mate := known(strand)) is not None]
    return sorted(found) if len(found) == len(strands) else None


def _is_all(known: int, one: Doing, other: Doing) -> bool:
    """Whether it is `known` of all that two calls take that it is the same."""
    return known == len(one.takes) == len(other.takes)


def _literally(one: Doing, other: Doing) -> bool:
    """Whether two calls have the same arguments besides tensors, as far as both tell."""
    return one.literals == other.literals or not (one.literals and other.literals)
