"""Weights that no module stands for: stacked experts, parameters of the root, plain tensors.

Code that calls functions instead of modules shows its weights where the functions take them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dumpcmp.align.listing import Listing
from dumpcmp.align.pieces import cut_out, parts_of
from dumpcmp.align.port.features import FeatureRows, Located, locate
from dumpcmp.align.port.proposing import Port
from dumpcmp.align.port.samples import Samples, Shelf, distance
from dumpcmp.align.renaming import unwrapped
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.value import Kind, dtype_named

_MANY = 16  # elements that two weights do not share by chance
Takers = dict[Key, list[Site]]  # the functions that take each value


@dataclass(frozen=True, slots=True)
class Belonging:
    """Values of golden that are those of the target: one to one, or several pieces of one."""

    golden: tuple[Key, ...]
    target: tuple[Key, ...]
    rel_l2: float | None  # None: not alike, though their weights are
    groups: int = 1
    of_weights: bool = True


@dataclass
class Loose:
    """The weights that are left of two implementations, and what they are of each other."""

    port: Port
    model: tuple[str, str]  # golden's name of it, and the target's
    found: list[Belonging] = field(default_factory=list)

    def solve(self) -> None:
        """Pair weights that are the same, then pieces of others, then what is made of both."""
        golden, target = self._left()
        self._pair_whole(golden, target)
        self._join(True)
        self._join(False)
        takers = _takers(self.port.ours.listing), _takers(self.port.theirs.listing)
        made = [made for one in self.found for made in self._made(one, takers)]
        self.found += {(one.golden, one.target): one for one in made}.values()  # weight and bias

    def _left(self) -> tuple[list[Key], list[Key]]:
        """The weights that modules do not stand for, and that no line was found for."""
        sides = (self.port.golden.listing, self.model[0]), (self.port.target.listing, self.model[1])
        known: tuple[set[str], set[str]] = set(), set()
        for likeness in self.port.pairs.values():
            if likeness.weights is not None:
                known[0].add(likeness.golden.op)
                known[1].add(likeness.target.op)
        for joint in self.port.joined:
            pieces, whole = {face.op for face in joint.pieces}, {joint.whole.op}
            known[0].update(pieces if joint.of_golden else whole)
            known[1].update(whole if joint.of_golden else pieces)
        used = {key for one in self.found for key in (*one.golden, *one.target)}
        left = [
            [key for key in _weights(listing, model) if unwrapped(key.op) not in ops]
            for (listing, model), ops in zip(sides, known, strict=True)
        ]
        return ([k for k in left[0] if k not in used], [k for k in left[1] if k not in used])

    def _pair_whole(self, golden: Sequence[Key], target: Sequence[Key]) -> None:
        shelf, taken = Shelf.of(self.port.theirs, target), set()
        for key in golden:
            likes = ((other, apart) for other, apart in shelf.like(key, self.port.ours))
            found = next(((o, apart) for o, apart in likes if o not in taken), None)
            if found is not None:
                taken.add(found[0])
                self.found.append(Belonging((key,), (found[0],), found[1]))

    def _join(self, of_golden: bool) -> None:
        """Weights of one side that make up one of the other."""
        golden, target = self._left()
        pieces, wholes = (golden, target) if of_golden else (target, golden)
        ours, theirs = self.port.ours, self.port.theirs
        small, large = (ours, theirs) if of_golden else (theirs, ours)
        for whole in sorted(wholes, key=lambda key: -_numel(large.listing, key)):
            parts = _making_up(pieces, small, whole, large)
            if parts:
                keys = tuple(key for key, _ in parts)
                pieces = [key for key in pieces if key not in keys]
                apart = max(located.rel_l2 for _, located in parts)
                flat = len(large.listing.record(whole).shape) == 2
                groups = parts[0][1].groups if flat else 1
                golden_keys, target_keys = (keys, (whole,)) if of_golden else ((whole,), keys)
                self.found.append(Belonging(golden_keys, target_keys, apart, groups))

    def _made(self, one: Belonging, takers: tuple[Takers, Takers]) -> Iterator[Belonging]:
        """What the calls that take weights which belong together give out."""
        ours, theirs = self.port.ours, self.port.theirs
        golden = [_product(ours.listing, takers[0], key) for key in one.golden]
        target = [_product(theirs.listing, takers[1], key) for key in one.target]
        if None in golden or None in target:
            return
        keys = tuple(k for k in golden if k), tuple(k for k in target if k)
        sizes = [sum(_numel(side.listing, key) for key in some)
                 for side, some in zip((ours, theirs), keys, strict=True)]  # fmt: skip
        if sizes[0] == sizes[1]:
            yield Belonging(*keys, self._apart(*keys, one.groups), one.groups, of_weights=False)

    def _apart(self, golden: tuple[Key, ...], target: tuple[Key, ...], groups: int) -> float | None:
        """How far values that are computed with the same weights lie apart; None: far."""
        ours, theirs = self.port.ours, self.port.theirs
        if len(golden) == len(target) == 1:
            likes = Shelf.of(theirs, target).like(golden[0], ours)
            return next((apart for _, apart in likes), None)
        sides = ((golden, ours), (target, theirs))
        (pieces, small), (whole, large) = sides if len(golden) > 1 else sides[::-1]
        parts = parts_of([small.listing.record(key).shape for key in pieces],
                         large.listing.record(whole[0]).shape, -1, groups)  # fmt: skip
        room, some = large.numbers(whole[0]), [small.numbers(key) for key in pieces]
        if parts is None or room is None:
            return None
        cuts = [cut_out(room, part) for part in parts]
        found = [distance(one, cut) for one, cut in zip(some, cuts, strict=True) if one is not None]
        apart = max(found, default=math.inf)
        return apart if apart <= SAME_VALUE else None


def _weights(listing: Listing, model: str) -> Iterator[Key]:
    """The parameters of a model in its first step, and plain tensors that its functions took."""
    steps = [site.step for site in listing.sites if site.model == model]
    first = min(steps, default=0)
    seen: set[str] = set()
    for site, keys in listing.sites.items():
        if site.model != model or site.step != first:
            continue
        for key in keys:
            record = listing.record(key)
            counts = key.slot.is_weight or (key.slot.is_input and not site.op.is_module)
            is_float = dtype_named(record.dtype).kind is Kind.FLOAT
            if counts and record.same_as is None and is_float and _numel(listing, key) >= _MANY:
                if not record.digest or record.digest not in seen:  # a parameter comes up twice
                    yield key
                seen.add(record.digest)


def _numel(listing: Listing, key: Key) -> int:
    return math.prod(listing.record(key).shape)


def _rows(samples: Samples, key: Key) -> Iterator[FeatureRows]:
    """The rows of a weight, and its columns; of a stack, those of each of its matrices in turn."""
    numbers = samples.numbers(key)
    if numbers is None or numbers.ndim not in (2, 3):
        return
    for one in (numbers, numbers.swapaxes(-1, -2)):
        yield FeatureRows.of(np.ascontiguousarray(one).reshape(-1, one.shape[-1]))


def _making_up(
    pieces: Iterable[Key], small: Samples, whole: Key, large: Samples
) -> list[tuple[Key, Located]]:
    """The pieces that follow each other without a gap in a whole, and make it up."""
    numel = _numel(large.listing, whole)
    few = [key for key in pieces if _numel(small.listing, key) < numel]
    for room in _rows(large, whole) if len(few) > 1 else ():
        found = [
            (key, located)
            for key in few
            if (located := next(_located(small, key, room), None)) is not None
        ]
        groups = max((located.groups for _, located in found), default=1)
        chosen, end = [], 0
        for key, located in sorted(found, key=lambda one: one[1].start):
            if located.start == end and located.groups == groups:
                chosen.append((key, located))
                end += located.run
        if len(chosen) > 1 and end * groups == len(room.matrix):
            return chosen
    return []


def _located(small: Samples, key: Key, room: FeatureRows) -> Iterator[Located]:
    for rows in _rows(small, key):
        if room.has(rows.head()):
            located = locate(rows, room)
            if located is not None:
                yield located


def _product(listing: Listing, takers: Takers, weight: Key) -> Key | None:
    """What is made of a weight: what its module gives out, or the function that takes it.

    Of a module with several weights, or of a weight that several functions take, nothing is told.
    """
    first = listing.first(weight)
    if weight.slot.is_weight:
        own = [key for key in listing.sites[weight.site] if key.slot.is_output]
        several = sum(len(listing.record(k).shape) > 1 for k in listing.sites[weight.site]
                      if k.slot.is_weight)  # fmt: skip
        if own and several <= 1:
            return own[0] if len(own) == 1 else None
    sites = takers.get(first, [])
    given = [k for site in sites for k in listing.sites[site] if k.slot.is_output]
    return given[0] if len(sites) == 1 and len(given) == 1 else None


def _takers(listing: Listing) -> Takers:
    """The functions that take each value."""
    found: Takers = {}
    for site, keys in listing.sites.items():
        for key in keys if not site.op.is_module else ():
            if key.slot.is_input:
                found.setdefault(listing.first(key), []).append(site)
    return found
