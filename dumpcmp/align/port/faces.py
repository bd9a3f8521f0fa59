"""What a module shows of itself: the weights that it has, and what it gives out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from dumpcmp.align.listing import Listing
from dumpcmp.align.renaming import unwrapped
from dumpcmp.nouns.key import ROOT, Key, Op, Site


@dataclass(frozen=True)
class Face:
    """A module in one step of its model, by what can be held against another's."""

    op: Op
    place: int  # among the modules of the run, as they came up
    outputs: tuple[Key, ...] = ()
    weights: tuple[Key, ...] = ()
    inputs: tuple[Key, ...] = ()

    def is_one_matrix(self, listing: Listing) -> bool:
        """Whether at most one of its weights is more than a row: that one stands for it."""
        return sum(len(listing.record(key).shape) > 1 for key in self.weights) <= 1

    @property
    def depth(self) -> int:
        """How many modules it lies in."""
        return self.op.count(".")


@dataclass(frozen=True)
class Faces:
    """The modules of one run, by name."""

    listing: Listing
    named: dict[Op, Face] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing, model: str) -> Faces:
        """The modules of `model`, in its first step: what each is and what it gives in a call."""
        steps = [site.step for site in listing.sites if site.model == model]
        first = min(steps, default=0)
        sites = [s for s in listing.sites if s.model == model and s.step == first and not s.call]
        gives = _given(listing, sites)
        has = {s.op: [key for key in listing.sites[s] if key.slot.is_weight] for s in sites}
        ops = dict.fromkeys(op for op in (*gives, *has) if op.is_module and op != ROOT)
        ordered = sorted(
            ops, key=lambda op: _order(listing, (*gives.get(op, ()), *has.get(op, ())))
        )
        takes = {s.op: [k for k in listing.sites[s] if k.slot.kind == "input"] for s in sites}
        faces = [
            Face(unwrapped(op), place, *(tuple(keys.get(op, ())) for keys in (gives, has, takes)))
            for place, op in enumerate(ordered)
        ]
        return cls(listing, {face.op: face for face in faces})

    def __iter__(self) -> Iterator[Face]:
        return iter(self.named.values())

    @cached_property
    def leaves(self) -> dict[Op, frozenset[Op]]:
        """The modules with weights of their own in each module; itself, where it is one."""
        found: dict[Op, set[Op]] = {op: set() for op in self.named}
        for face in self:
            if face.weights:
                for holder in holders(face.op):
                    if holder in found:
                        found[holder].add(face.op)
        return {op: frozenset(leaves) for op, leaves in found.items()}


def holders(op: Op) -> Iterator[Op]:
    """A module and those that it lies in, the innermost first; the root is none."""
    segments = op.split(".")
    yield from (Op(".".join(segments[:n])) for n in range(len(segments), 0, -1))


def _given(listing: Listing, sites: Iterable[Site]) -> dict[Op, list[Key]]:
    """What modules give out; where they are not recorded, what is computed last in them."""
    own: dict[Op, list[Key]] = {}
    last: dict[Op, list[Key]] = {}
    for site in sites:
        keys = [key for key in listing.sites[site] if key.slot.is_output]
        if keys and site.op.is_module:
            own[site.op] = keys
        elif keys and site.op.module != ROOT and not site.op.scope.partition("@")[2]:
            last |= dict.fromkeys(holders(Op(site.op.module)), keys)
    return own or last


def _order(listing: Listing, keys: Iterable[Key]) -> int:
    return min((listing.record(key).order for key in keys), default=0)
