"""The data flow of one run: which of its values are one, and what each call makes of which.

A Strand is a value through all its appearances, under whatever name, shape and copy: links say so,
and where an op only moves elements, the digests of its input and output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from dumpcmp.align.listing import Listing
from dumpcmp.align.pieces import lie_of, num_shown
from dumpcmp.align.synonyms import contracts, gives_views, keeps_elements
from dumpcmp.nouns.given import parsed, told_by
from dumpcmp.nouns.key import Key, Site, Slot
from dumpcmp.nouns.op_names import WorkSet, canonical
from dumpcmp.nouns.record import VMAP, Record

Strand = int
FactorPart = tuple[Strand, bool]  # a value, and whether it is only a part of it
Content = tuple[str, str]  # dtype and digest
_INDEXING = WorkSet("getitem")
_MANY = 16  # elements that two values do not share by chance
Expression = tuple[object, ...]  # what a call does, and the strands that it does it to


@dataclass(frozen=True, slots=True)
class Doing:
    """One call of a function as the flow sees it."""

    site: Site
    function: str  # canonical
    takes: tuple[Strand, ...]
    gives: tuple[Strand, ...]
    literals: str = ""  # its other arguments; empty where they are not known


@dataclass(frozen=True, eq=False)
class Flow:
    """The strands of a run, numbered, and its calls on them."""

    listing: Listing
    _of: dict[Key, Strand] = field(default_factory=dict)
    _parent: list[Strand] = field(default_factory=list)
    _root: dict[Strand, Strand] = field(default_factory=dict)  # the strand that it is a view of
    _parts: set[Strand] = field(default_factory=set)  # views that lack elements of that

    @classmethod
    def of(cls, listing: Listing) -> Flow:
        """Number the strands of a run."""
        flow = cls(listing)
        flow._number()
        seen: dict[tuple[object, ...], Strand] = {}
        done: dict[Expression, list[Strand]] = {}
        for site, keys in listing.sites.items():
            if site.op.is_module:
                flow._see(seen, site, keys)
        for site, keys in listing.sites.items():
            if not site.op.is_module:
                flow._see(seen, site, keys)
                flow._look_through(site, keys)
                flow._do_again(done, site, keys)
        return flow

    def strand(self, key: Key) -> Strand:
        """The strand that a value is an appearance of."""
        return self._find(self._of[key])

    def _number(self) -> None:
        """Give every value the number of its first appearance."""
        firsts: dict[Key, Strand] = {}
        for key in self.listing.values:
            self._of[key] = firsts.setdefault(self.listing.first(key), len(firsts))
        self._parent.extend(range(len(firsts)))

    def root(self, strand: Strand) -> Strand:
        """The strand that `strand` is a view of at any remove; itself where it is none."""
        strand = self._find(strand)
        return self._find(self._root.get(strand, strand))

    def _find(self, strand: Strand) -> Strand:
        parent = self._parent
        while parent[strand] != strand:
            parent[strand] = parent[parent[strand]]
            strand = parent[strand]
        return strand

    def _see(self, seen: dict[tuple[object, ...], Strand], site: Site, keys: list[Key]) -> None:
        """Values without a link that are, to the bit and on every rank, ones that were before."""
        for key in keys:
            if key.slot.is_gradient or key in self.listing.links:
                continue
            contents = [content_of(record) for record in self.listing.values[key]]
            if None in contents:
                continue
            where = (site.model, site.step, *contents)
            if key.slot.is_input and where in seen:
                self._parent[self.strand(key)] = self._find(seen[where])
            else:
                seen.setdefault(where, self.strand(key))

    def _look_through(self, site: Site, keys: list[Key]) -> None:
        """Where a call only moves elements, what it gives is what it took, or a view of it."""
        function = site.op.function
        if not keeps_elements(function):
            return
        given = next((key for key in keys if key.slot.is_input), None)
        for key in keys if given else ():
            if not key.slot.is_output:
                continue
            assert given is not None
            one, other = self.strand(given), self.strand(key)
            before, after = self.listing.record(given), self.listing.record(key)
            if one != other and same_elements(before, after):
                self._parent[other] = one
            elif one != other and shows_first(self.listing, site):
                self._root[other] = self.root(one)
                if one in self._parts or num_shown(after) < num_shown(before):
                    self._parts.add(other)

    def _do_again(self, done: dict[Expression, list[Strand]], site: Site, keys: list[Key]) -> None:
        """Where a call does once more what one before it did, and gives the same bytes."""
        given = [key for key in keys if key.slot.is_output]
        contents = [content_of(self.listing.record(key)) for key in given]
        taken = [self.strand(key) for key in keys if key.slot.is_input]
        if not taken or not given or None in contents:
            return
        doing = (site.model, site.step, site.op.function, *taken, *contents)
        before = done.setdefault(doing, [self.strand(key) for key in given])
        for key, strand in zip(given, before, strict=True):
            self._parent[self.strand(key)] = self._find(strand)

    @cached_property
    def doings(self) -> dict[Site, Doing]:
        """The calls of functions, in order of execution."""
        sites = ((s, keys) for s, keys in self.listing.sites.items() if not s.op.is_module)
        return {site: self._doing(site, keys) for site, keys in sites}

    def _doing(self, site: Site, keys: list[Key]) -> Doing:
        call = self.listing.calls.get(site)
        taken = [key for key in keys if key.slot.kind == "input"]
        taken.sort(key=lambda key: _position(key.slot))  # a compiled run tells of them in any order
        return Doing(
            site,
            canonical(site.op.function),
            tuple(self.strand(key) for key in taken),
            tuple(self.strand(key) for key in keys if key.slot.is_output),
            told_by(call, _literals) + VMAP * self.listing.is_batched(site) if call else "",
        )

    def geometries(self, site: Site) -> Iterator[tuple[Key, Strand, Expression]]:
        """The outputs of a view: each with the strand that it shows, and how it lies in it."""
        keys = self.listing.sites[site]
        given = next((key for key in keys if key.slot.is_input), None)
        if given is None or not shows_first(self.listing, site):
            return
        base = self.root(self.strand(given))
        for key in keys:
            record = self.listing.record(key)
            if key.slot.is_output and self.root(self.strand(key)) == base:
                yield key, base, lie_of(record)

    def contents(self) -> Iterator[tuple[Site, Content, Strand]]:
        """What came in from outside: a call that took it, its bytes, and its strand."""
        for key, (record, *_) in self.listing.values.items():
            if record.same_as is None and key.slot.is_input and (content := content_of(record)):
                yield key.site, content, self.strand(key)

    def results(self) -> Iterator[tuple[Site, Content, Strand]]:
        """What was computed, as far as its bytes tell it from others: no masks, no few numbers."""
        for key, (record, *_) in self.listing.values.items():
            made = record.same_as is None and key.slot.is_output and not key.op.is_module
            tells = made and "float" in record.dtype and math.prod(record.shape) >= _MANY
            if tells and (content := content_of(record)):
                yield key.site, content, self.strand(key)

    def contracted(self, doing: Doing) -> list[FactorPart] | None:
        """What a product of matrices multiplies, in whatever view; parts are not the whole.

        Which part it is may depend on values, as the rows of an expert do.
        """
        if not contracts(doing.site.op.function):
            return None
        return [(self.root(strand), strand in self._parts) for strand in doing.takes]


def shows_first(listing: Listing, site: Site) -> bool:
    """Whether a call gives its first input seen in another way; what picks elements copies."""
    if site.op.function not in _INDEXING:
        return gives_views(site.op.function)
    call = listing.calls.get(site)
    is_alone = sum(key.slot.is_input for key in listing.sites[site]) == 1
    return is_alone and not (call and told_by(call, _picks))


def content_of(record: Record) -> Content | None:
    """What a value is to the bit; None where that says little, or is not known."""
    return (record.dtype, record.digest) if record.digest and math.prod(record.shape) > 1 else None


def same_elements(one: Record, other: Record) -> bool:
    """Whether two values have the same elements in the same order."""
    same = one.digest == other.digest != "" and one.dtype == other.dtype
    return same and math.prod(one.shape) == math.prod(other.shape)


@lru_cache(maxsize=4096)
def _position(slot: Slot) -> tuple[float, ...]:
    """Where among its arguments a call takes a value; what it takes by name is behind them."""
    return tuple(float(part) if part.isdigit() else math.inf for part in slot.name.split("."))


@lru_cache(1 << 16)
def _literals(arguments: str) -> str:
    """The arguments of a call that are no tensors."""
    if not arguments:
        return ""
    found: list[str] = []
    _collect(parsed(arguments), found)
    return " ".join(found) or "-"


@lru_cache(1 << 12)
def _picks(arguments: str) -> bool:
    """Whether an index holds lists or truth values, which pick elements as a tensor does."""
    if not arguments:
        return False
    _, *index = parsed(arguments).get("args", [None])
    return any(map(_is_list, index))


def _is_list(index: object) -> bool:
    if isinstance(index, dict) and "tuple" in index:
        return any(map(_is_list, index["tuple"]))
    return isinstance(index, list | bool) or (isinstance(index, dict) and "object" in index)


def _collect(tree: object, found: list[str]) -> None:
    if isinstance(tree, dict):
        if "slot" not in tree:
            for name in tree:
                _collect(tree[name], found)
    elif isinstance(tree, list):
        for item in tree:
            _collect("None" if item is None else item, found)  # as in a slice
    elif tree is not None:
        found.append(str(tree))
