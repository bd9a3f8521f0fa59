"""The start of two runs: which leaf of golden is which of the target's, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from dumpcmp.align.renaming import unwrapped
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Kept, Phase, Record
from dumpcmp.nouns.value import value_of
from dumpcmp.shadows.assembled_weights import AssembledWeight, assembled, order_of_indices
from dumpcmp.shadows.declared_levels import are_codes, quantised
from dumpcmp.shadows.program import Program, ValueId
from dumpcmp.shadows.quantities import Application, Book, Quantity
from dumpcmp.shadows.shadow import Shadow, identity, load
from dumpcmp.shadows.slices import Marginals, is_covered

_SEEN = 4096  # elements of a leaf that are looked at
_WHOLE = "output.0"
_MOST_ROUNDED = 2.0**-4  # of its size: what a short dtype and a loss leave of a gradient's digits
NameInProgram = tuple[str, int, str]  # of a value within its step


class Relation(StrEnum):
    """How a leaf of golden and the target's of the same name, which has other bytes, belong."""

    CAST = "cast"  # one is the other, rounded to a shorter dtype
    CARRIED = "carried"  # both are one quantity of the step before
    LEVELS = "levels"  # the target's is golden's, rounded to declared levels
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LeafPair:
    """A leaf of golden and the target's in its place, which holds other bytes."""

    golden: ValueId
    target: ValueId
    relation: Relation


@dataclass(eq=False)
class Before:
    """The step before, by which a leaf may be known: what it is was settled there."""

    golden: Shadow
    target: Shadow
    earlier: Before | None = None
    in_terms: frozenset[str] = frozenset()  # gradients of which each rank has a term
    names: dict[NameInProgram, NameInProgram] = field(init=False)  # of golden's weights: my names
    _values: dict[str, dict[str, ValueId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = dict(self.earlier.names) if self.earlier is not None else self._names()
        self.earlier = None

    def is_term(self, weight: ValueId) -> bool:
        """Whether what is recorded of the gradient of one of the target's weights is a term."""
        shown = (each for each in self.target.program.effects if each.leaf == weight)
        return any(each.name in self.in_terms for each in shown)

    def _names(self) -> dict[NameInProgram, NameInProgram]:
        """How the target calls golden's weights: those of the same bytes, in their order."""
        theirs: dict[int, list[NameInProgram]] = {}
        for name, quantity in _weights(self.target):
            theirs.setdefault(id(quantity), []).append(name)
        found: dict[NameInProgram, NameInProgram] = {}
        for name, quantity in _weights(self.golden):
            others = theirs.get(id(quantity), [])
            if others:
                found[name] = others.pop(others.index(name) if name in others else 0)
        return found

    def quantity(self, side: str, digest: str) -> Quantity | None:
        """What a run had of these bytes."""
        shadow = self.golden if side == "golden" else self.target
        if side not in self._values:
            records = shadow.program.records.items()
            self._values[side] = {r.digest: value for value, r in records if _is_telling(r)}
        value = self._values[side].get(digest)
        return None if value is None else shadow.quantities.get(value)

    def is_carried(self, ours: Record, theirs: Record) -> bool:
        """Whether two leaves are one quantity of the step before."""
        golden = self.quantity("golden", ours.digest)
        target = self.quantity("target", theirs.digest)
        return golden is not None and target is not None and golden.is_same(target)


@dataclass(eq=False)
class Start:
    """The leaves of both runs of one step."""

    book: Book
    before: Before | None = None
    levels: tuple[str, ...] = ()  # that are declared
    rounded: dict[tuple[ValueId, ValueId], str] = field(default_factory=dict)  # what they explain
    differing: list[LeafPair] = field(default_factory=list)
    alone: list[ValueId] = field(default_factory=list)  # golden's, of which the target has none
    _targets: dict[NameInProgram, list[ValueId]] = field(default_factory=dict)
    _of_target: dict[ValueId, Quantity] = field(default_factory=dict)
    _records: dict[ValueId, Record] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)  # ids of the target's leaves
    _digests: dict[str, set[str]] = field(default_factory=dict)  # of leaves, by side

    def know(self, side: str, program: Program) -> None:
        """Learn which bytes a run started from, before either is followed."""
        leaves = (leaf for leaf in program.leaves if not leaf.key.slot.is_gradient)
        records = (program.records[leaf] for leaf in leaves)  # a loss may hand back what it took
        self._digests[side] = {record.digest for record in records if _is_telling(record)}

    def forget_golden(self) -> None:
        """Let golden's program be followed once more."""
        self.differing, self.alone = [], []

    def precomputed(self, other: str, shadow: Shadow, value: ValueId) -> Quantity | None:
        """What was recorded of a computed value, where the `other` run started from those bytes.

        One run computes what the other has in a buffer or a cache, which was rounded when it was
        made: both go on from there.
        """
        record = shadow.record(value)
        own = "target" if other == "golden" else "golden"
        is_theirs = record.digest in self._digests.get(other, ())
        if not _is_telling(record) or not is_theirs or record.digest in self._digests.get(own, ()):
            return None
        return self.book.leaf(identity(record), partial(load, shadow.archive, record))

    def of_target(self, shadow: Shadow, value: ValueId) -> Quantity:
        """The quantity of a leaf of the target: what was recorded."""
        record = shadow.record(value)
        found = self.book.leaf(identity(record), partial(load, shadow.archive, record))
        name = _name(shadow.program, value)
        found = self._as_on_other_ranks(name, record, found)
        self._targets.setdefault(name, []).append(value)
        self._of_target[value], self._records[value] = found, record
        self._known.add(id(found))
        return found

    def _as_on_other_ranks(self, name: NameInProgram, record: Record, own: Quantity) -> Quantity:
        """What a loss gave on another rank, if this rank's is that but for rounding."""
        if name[0] != "gradient":
            return own
        for other in self._targets.get(name, ()):
            known = self._of_target[other]
            try:
                if self._records[other].shape == record.shape and _is_near(
                    known.tensor, own.tensor
                ):
                    return known
            except DumpcmpError:
                continue
        return own

    def of_golden(self, shadow: Shadow, value: ValueId) -> Quantity:
        """The same of golden: the target's quantity, where it is the target's leaf."""
        record = shadow.record(value)
        found = self.book.leaf(identity(record), partial(load, shadow.archive, record))
        if id(found) in self._known and (
            self._is_named_alike(shadow, value, found)
            or (_has_own_numbers(found) and self._is_swapped(shadow, value))
        ):
            return found
        for known_by in (self._assembled, self._given_in_parts, self._given_as_part):
            if (known := known_by(shadow, value)) is not None:
                return known
        pair = self._pair(shadow, value, record)
        if pair is None or (pair.relation is Relation.OTHER and shadow.is_constant(value)):
            self.alone.append(value)
            return found
        self.differing.append(pair)
        return self._of_target[pair.target]

    def _assembled(self, shadow: Shadow, value: ValueId) -> Quantity | None:
        """What ranks of the target hold of a weight of golden's in parts, put together."""
        name = _name(shadow.program, value)
        if not value.key.slot.is_weight or self.levels:
            return None
        held = [(other, self._records[other]) for other in self._targets.get(name, ())]
        found = assembled(shadow.record(value).shape, held)
        if found is None:
            return None
        parts = {str(at): self._of_target[part.value] for at, part in enumerate(found.parts)}
        order = self._order_of_parts(shadow, value, found)
        expression = "assembled", found.dim, order, tuple(map(id, parts.values()))
        run = partial(_joined, found.dim, order)
        made = self.book.computed(expression, lambda: Application(run, parts, {_WHOLE: _unread}))
        return made[_WHOLE]

    def _given_in_parts(self, shadow: Shadow, value: ValueId) -> Quantity | None:
        """A gradient that a loss gave, by what losses gave on the target's ranks, put together.

        A loss that is a mean over a rank's own data gives so many times more as there are ranks.
        """
        name = _name(shadow.program, value)
        others = {id(self._of_target[o]): o for o in reversed(self._targets.get(name, ()))}
        held = [(other, self._records[other]) for other in reversed(others.values())]
        if not is_gradient(shadow.program, value) or len(held) < 2:
            return None
        found = assembled(shadow.record(value).shape, held)
        if found is None:
            return None
        parts = {str(at): self._of_target[part.value] for at, part in enumerate(found.parts)}
        try:
            golden = shadow.loader(value)()
            whole = _joined(found.dim, None, {n: each.tensor for n, each in parts.items()})[_WHOLE]
        except DumpcmpError:
            return None
        share = next((s for s in (1, len(parts)) if _is_near(golden, whole / s)), None)
        if share is None:
            return None
        expression = "given in parts", found.dim, share, tuple(map(id, parts.values()))
        run = partial(_joined, found.dim, None, share=share)
        made = self.book.computed(expression, lambda: Application(run, parts, {_WHOLE: _unread}))
        return made[_WHOLE]

    def _given_as_part(self, shadow: Shadow, value: ValueId) -> Quantity | None:
        """A gradient that a loss gave for a part of what the target's loss gave one for at once.

        A loss that is a mean over that part alone gives so many times more as there are parts.
        """
        held = self._targets.get(_name(shadow.program, value), ())
        if not value.key.slot.is_gradient or len(held) != 1:
            return None
        whole = self._of_target[held[0]]
        try:
            found = _part_near(shadow.loader(value)(), whole.tensor)
        except DumpcmpError:
            return None
        if found is None:
            return None
        run = partial(_cut, *found)
        made = self.book.computed(
            ("given as part", *found, id(whole)),
            lambda: Application(run, {_WHOLE: whole}, {_WHOLE: _unread}),
        )
        return made[_WHOLE]

    def _order_of_parts(
        self, shadow: Shadow, value: ValueId, found: AssembledWeight
    ) -> tuple[int, ...] | None:
        """In what order golden has the indices of all parts, if not one part after the other.

        Parts that hold other numbers than golden has there are noted.
        """
        differing = []
        try:
            golden = shadow.loader(value)()
            for part in (*found.parts, *found.replicas):
                ours = golden.narrow(found.dim, part.first, part.record.shape[found.dim])
                theirs = self._of_target[part.value].tensor
                dtypes = shadow.record(value).dtype, part.record.dtype
                if not torch.equal(ours, theirs) and not _are_casts(ours, theirs, dtypes):
                    differing.append(LeafPair(value, part.value, Relation.OTHER))
            if differing and not found.replicas:
                parts = [self._of_target[part.value].tensor for part in found.parts]
                dtype = found.parts[0].record.dtype, shadow.record(value).dtype
                order = order_of_indices(golden, torch.cat(parts, found.dim), found.dim, dtype)
                if order is not None:
                    return order
        except DumpcmpError:
            return None  # nobody knows golden's numbers
        self.differing += differing
        return None

    def weights_alone(self, golden: Shadow, target: Shadow) -> Iterator[ValueId]:
        """Weights of single ranks that are none of golden's, though golden's has that shape."""
        ours: dict[NameInProgram, list[Record]] = {}
        for leaf in golden.program.leaves:
            ours.setdefault(_name(golden.program, leaf), []).append(golden.record(leaf))
        for leaf in target.program.leaves if len(target.program.ranks) > 1 else ():
            record, known = target.record(leaf), ours.get(_name(target.program, leaf), ())
            alike = [each for each in known if each.shape == record.shape]
            if not alike or not leaf.key.slot.is_weight or not _is_telling(record):
                continue
            is_known = any(each.digest == record.digest for each in alike)
            quantity = target.quantity(leaf)
            if not is_known and not any(_is_cast(golden, k, record, quantity) for k in alike):
                yield leaf

    def _is_named_alike(self, shadow: Shadow, value: ValueId, found: Quantity) -> bool:
        """Whether the target has this leaf under the same name, or nothing else under it."""
        others = self._targets.get(_name(shadow.program, value), ())
        return not others or any(self._of_target[other] is found for other in others)

    def _is_swapped(self, shadow: Shadow, value: ValueId) -> bool:
        """Whether golden has under other names what the target has under the name of `value`."""
        others = self._targets.get(_name(shadow.program, value), ())
        return all(self._records[o].digest in self._digests["golden"] for o in others)

    def _pair(self, shadow: Shadow, value: ValueId, record: Record) -> LeafPair | None:
        name = _name(shadow.program, value)
        if name not in self._targets and self.before is not None:
            name = self.before.names.get(name, name)
        if name not in self._targets:  # a weight may be known by the calls alone that take it
            name = next((one for one in _taken_as(shadow, value) if one in self._targets), name)
        named = self._targets.get(name, ())
        for other in sorted(named, key=lambda each: each.rank != value.rank):
            theirs = self._records[other]
            if self.levels and are_codes(record.dtype, theirs.dtype):
                continue
            if theirs.shape == record.shape:
                relation = self._relation(shadow, value, other)
                return LeafPair(value, other, relation)
        if self.before is None or not _is_telling(record):
            return None
        for other, theirs in self._records.items():
            is_like = theirs.shape == record.shape and _is_telling(theirs)
            if is_like and self.before.is_carried(record, theirs):
                return LeafPair(value, other, Relation.CARRIED)
        return None

    def _relation(self, shadow: Shadow, value: ValueId, other: ValueId) -> Relation:
        record = shadow.record(value)
        theirs = self._records[other]
        if _is_cast(shadow, record, theirs, self._of_target[other]):
            return Relation.CAST
        if self.before is not None and self.before.is_carried(record, theirs):
            return Relation.CARRIED
        if self.levels and (said := self._said_of_levels(shadow, value, other)):
            self.rounded[value, other] = said
            return Relation.LEVELS
        return Relation.OTHER

    def _said_of_levels(self, shadow: Shadow, value: ValueId, other: ValueId) -> str:
        dtypes = shadow.record(value).dtype, self._records[other].dtype
        try:
            ours, theirs = (
                value_of(tensor.to(getattr(torch, dtype)))
                for tensor, dtype in zip(
                    (shadow.loader(value)(), self._of_target[other].tensor), dtypes, strict=True
                )
            )
        except DumpcmpError:
            return ""
        found = quantised(ours, theirs, self.levels)
        return found.said if found else ""


def _weights(shadow: Shadow) -> Iterator[tuple[NameInProgram, Quantity]]:
    """The weights that a run started from, under all of their names."""
    for place, value in shadow.program.places.items():
        if place.key.slot.is_weight and value not in shadow.program.producers:
            yield (place.key.op, place.key.call, place.key.slot), shadow.quantity(value)


def is_spread(whole: Quantity, target: Shadow) -> bool:
    """Whether ranks started from all slices of `whole`."""
    try:
        leaves = [target.quantity(leaf) for leaf in target.program.leaves]
        size = whole.tensor.numel()
        parts = [each.print for each in leaves if not each.problem and each.tensor.numel() < size]
        return is_covered(Marginals(whole.tensor), parts)
    except DumpcmpError:
        return False


def _is_telling(record: Record) -> bool:
    return bool(record.digest) and record.kept is Kept.FULL and math.prod(record.shape) > 1


def _has_own_numbers(leaf: Quantity) -> bool:
    """Whether the bytes of a leaf say which one it is, of those that two runs started from.

    A ramp of integers does; it does not where values are looked for that were computed.
    """
    return leaf.is_telling or len(set(leaf.tensor.reshape(-1)[:_SEEN].tolist())) > 3


def _name(program: Program, value: ValueId) -> NameInProgram:
    """What a leaf is called; the gradient of what the model returned, by that."""
    for effect in program.effects:
        if program.gradients.get(effect.value) == value:
            return "gradient", 0, effect.name
    key = value.key
    return unwrapped(key.op), key.call, key.slot


def is_gradient(program: Program, value: ValueId) -> bool:
    """Whether a leaf is a gradient, by its name, or as only a backward pass takes it."""
    takers = program.consumers.get(value, ())
    is_backward = bool(takers) and all(each.call.phase is Phase.BACKWARD for each in takers)
    return is_backward or value.key.slot.is_gradient


def _taken_as(shadow: Shadow, value: ValueId) -> Iterator[NameInProgram]:
    """The names that a weight has where calls take it."""
    slots = shadow.program.slots_of.get(value, ()) if value.key.slot.is_weight else ()
    return (
        (unwrapped(at.key.op), at.key.call, at.key.slot) for at in slots if at.rank == value.rank
    )


def _is_cast(shadow: Shadow, ours: Record, theirs: Record, target: Quantity) -> bool:
    """Whether a leaf of golden and the target's are one number but for the rounding of a dtype."""
    try:
        golden, other = load(shadow.archive, ours), target.tensor
    except DumpcmpError:
        return False
    return golden.shape == other.shape and _are_casts(golden, other, (ours.dtype, theirs.dtype))


def _are_casts(golden: Tensor, target: Tensor, dtypes: tuple[str, str]) -> bool:
    """Whether numbers of two dtypes are one, rounded to the shorter."""
    if dtypes[0] == dtypes[1]:
        return False
    if not (golden.is_floating_point() and target.is_floating_point()):
        return False
    short = min((getattr(torch, one) for one in dtypes), key=lambda dtype: torch.finfo(dtype).bits)
    return torch.equal(golden.to(short), target.to(short))


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients are one but for what rounding before a loss may have made of it."""
    return float((one - other).norm()) <= _MOST_ROUNDED * float(one.norm())


def _part_near(part: Tensor, whole: Tensor) -> tuple[int, int, int, int] | None:
    """Where in `whole` something near a part of it lies: dim, first index, length, times."""
    if part.ndim != whole.ndim:
        return None
    cut = [dim for dim in range(part.ndim) if part.shape[dim] != whole.shape[dim]]
    if len(cut) != 1 or not part.numel() or part.shape[cut[0]] > whole.shape[cut[0]]:
        return None
    dim, length, size = cut[0], part.shape[cut[0]], whole.shape[cut[0]]
    for first in range(0, size - length + 1, math.gcd(length, size)):
        here = whole.narrow(dim, first, length)
        for times in (1, -(-size // length)):
            if _is_near(part, here * times):
                return dim, first, length, times
    return None


def _cut(
    dim: int, first: int, length: int, times: int, given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return {_WHOLE: given[_WHOLE].narrow(dim, first, length) * times}


def _joined(
    dim: int, order: tuple[int, ...] | None, given: Mapping[str, Tensor], share: int = 1
) -> dict[str, Tensor]:
    whole = torch.cat([given[str(at)] for at in range(len(given))], dim)
    whole = whole / share if share > 1 else whole
    return {_WHOLE: whole if order is None else whole.index_select(dim, torch.tensor(order))}


def _unread() -> Tensor:
    raise DumpcmpError("ranks hold it in parts, one of which cannot be read")
