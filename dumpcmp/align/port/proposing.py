"""Finds which modules of two implementations are the same: by weights, values, and what is inside.

Modules with weights come first: each finds the one that has the same. Where several do, as norms
that are all ones, what they give out decides, and then their place in the run. What is left may be
pieces of one on the other side. A module that holds others is the one that holds their partners.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from dumpcmp.align.port.faces import Face, Faces, holders
from dumpcmp.align.port.joining import Joint, joints
from dumpcmp.align.port.samples import Samples, Shelf
from dumpcmp.align.turning import Turns
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.row import DimOrder

Likes = dict[Op, dict[Op, float]]  # golden's modules, the target's that each may be, and how far


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two modules that are the same, and what speaks for it."""

    golden: Face
    target: Face
    weights: float | None = None  # the largest rel_l2 of weights, 0 to the bit; None: no such
    outputs: float | None = None  # of what they give out; None where it is not alike
    inside: int = 0  # modules inside that are the same


@dataclass
class Port:
    """Two implementations, and what of them is known to be the same."""

    golden: Faces
    target: Faces
    ours: Samples
    theirs: Samples
    pairs: dict[Op, Likeness] = field(default_factory=dict)  # by golden's module
    joined: list[Joint] = field(default_factory=list)
    _taken: set[Op] = field(default_factory=set)
    _slots: dict[tuple[Op, Op], dict[Slot, list[Slot]]] = field(default_factory=dict)

    def solve(self) -> None:
        """Find all that can be found."""
        self._pair_leaves()
        self._pair_pieces()
        self._pair_holders()
        self._pair_givers()

    def left(self) -> tuple[list[Face], list[Face]]:
        """The modules of both sides that have found nothing."""
        golden, target = set(self.pairs), set(self._taken)
        for joint in self.joined:
            pieces, whole = {face.op for face in joint.pieces}, {joint.whole.op}
            golden |= pieces if joint.of_golden else whole
            target |= whole if joint.of_golden else pieces
        return (
            [face for face in self.golden if face.op not in golden],
            [face for face in self.target if face.op not in target],
        )

    @cached_property
    def _alike(self) -> Likes:
        """Modules that give out the same."""
        return self._likes(lambda face: face.outputs)

    def _likes(self, values: Callable[[Face], tuple[Key, ...]]) -> Likes:
        owner = {key: face.op for face in self.target for key in values(face)}
        shelf = Shelf.of(self.theirs, owner)
        found: Likes = defaultdict(dict)
        for face in self.golden:
            for key in values(face):
                for other, apart in shelf.like(key, self.ours):
                    slots = self._slots.setdefault((face.op, owner[other]), {})
                    slots.setdefault(key.slot, []).append(other.slot)
                    known = found[face.op].get(owner[other], apart)
                    found[face.op][owner[other]] = min(apart, known)
        return found

    def moved(self, likeness: Likeness) -> Iterator[tuple[Slot, Slot]]:
        """What one module gives out as another of its values than the other does."""
        slots = self._slots.get((likeness.golden.op, likeness.target.op), {})
        for slot, others in slots.items():
            given = {key.slot for key in likeness.target.outputs}
            if slot.is_output and slot in given and slot not in others:
                yield slot, others[0]

    def order(self, likeness: Likeness) -> DimOrder | None:
        """The order in which the target's dims are golden's, of what two modules give out."""
        one, other = likeness.golden.outputs[:1], likeness.target.outputs[:1]
        if not one or not other:
            return None
        records = self.golden.listing.record(one[0]), self.target.listing.record(other[0])
        shapes = records[0].shape, records[1].shape
        if len(shapes[0]) != len(shapes[1]) or sorted(shapes[0]) != sorted(shapes[1]):
            return None
        return Turns(self.ours.numbers, self.theirs.numbers).turn(one[0], other[0], shapes)

    def _pair(self, likeness: Likeness) -> None:
        self.pairs[likeness.golden.op] = likeness
        self._taken.add(likeness.target.op)

    def _is_free(self, golden: Op, target: Op) -> bool:
        return golden not in self.pairs and target not in self._taken

    def _pair_leaves(self) -> None:
        """Modules whose largest weight is the same; the nearest of those that give the same."""
        likes = self._likes(lambda face: _largest(face, self.golden, self.target))
        found = [
            (self._alike.get(one, {}).get(other) is None, self._farness(one, other), one, other)
            for one, others in likes.items()
            for other in others
        ]
        for differs, _, one, other in sorted(found):
            if self._is_free(one, other):
                outputs = None if differs else self._alike[one][other]
                self._pair(Likeness(self.golden.named[one], self.target.named[other],
                                    likes[one][other], outputs))  # fmt: skip

    def _farness(self, golden: Op, target: Op) -> float:
        """How far two modules are apart in the order of their runs."""
        ours, theirs = self.golden.named, self.target.named
        return abs(ours[golden].place / len(ours) - theirs[target].place / len(theirs))

    def _pair_pieces(self) -> None:
        """Modules of which one side has in one what the other has in several."""
        golden, target = self.left()
        self.joined += joints(golden, self.ours, target, self.theirs, of_golden=True)
        golden, target = self.left()
        self.joined += joints(target, self.theirs, golden, self.ours, of_golden=False)

    @cached_property
    def _image(self) -> dict[Op, set[Op]]:
        """Golden's modules with weights, and those of the target that have these weights."""
        found = {op: {likeness.target.op} for op, likeness in self.pairs.items()}
        for joint in self.joined:
            for piece in joint.pieces:
                one, other = (piece, joint.whole) if joint.of_golden else (joint.whole, piece)
                found.setdefault(one.op, set()).add(other.op)
        return found

    def _pair_holders(self) -> None:
        """Modules that hold modules which are the same, and few others."""
        likely: dict[tuple[Op, ...], list[Op]] = defaultdict(list)
        for face in self.golden:
            if face.op not in self._image:
                others = tuple(self._holders_of(face.op))
                if others:
                    likely[others].append(face.op)
        for others, ours in likely.items():
            for one, other in self._nested(ours, others):
                if self._is_free(one, other):
                    inside = len(self.golden.leaves[one])
                    outputs = self._alike.get(one, {}).get(other)
                    faces = self.golden.named[one], self.target.named[other]
                    self._pair(Likeness(*faces, None, outputs, inside))

    def _holders_of(self, golden: Op) -> list[Op]:
        """The target's modules that hold most of what `golden` holds and least else."""
        ours = self.golden.leaves[golden]
        image = {op for leaf in ours for op in self._image.get(leaf, ())}
        near = dict.fromkeys(h for op in image for h in holders(op) if h in self.target.named)
        shares = {
            op: len(image & held) / len(image | held)
            for op in near
            if (held := self.target.leaves[op]) and op not in image
        }
        best = max(shares.values(), default=0.0)
        return sorted(op for op, share in shares.items() if share == best and 2 * share > 1)

    def _nested(self, golden: list[Op], target: tuple[Op, ...]) -> Iterator[tuple[Op, Op]]:
        """Modules that hold the same, of which one may be inside the other: from outside in.

        What gives the same comes first, where one side has more of them.
        """
        ours = sorted(golden, key=lambda op: op.count("."))
        theirs = sorted(target, key=lambda op: op.count("."))
        if len(ours) != len(theirs):
            yield from ((o, t) for o in ours for t in theirs if t in self._alike.get(o, {}))
        yield from zip(ours, theirs, strict=False)

    def _pair_givers(self) -> None:
        """Modules without weights, inside modules that are the same, that give out the same."""
        golden, _ = self.left()
        for face in golden:
            room = self._room(face.op)
            others = [
                (apart, self._farness(face.op, other), other)
                for other, apart in self._alike.get(face.op, {}).items()
                if self._is_free(face.op, other) and not self.target.named[other].weights
                and not self.target.leaves[other] and self._is_in(other, room)
                and self._take_the_same(face, self.target.named[other])
            ]  # fmt: skip
            for apart, _, other in sorted(others)[:1]:
                if not face.weights and not self.golden.leaves[face.op]:
                    self._pair(Likeness(face, self.target.named[other], None, apart))

    def _take_the_same(self, golden: Face, target: Face) -> bool:
        """Whether two modules are given the same, as far as that is kept.

        A dropout behind a function gives out what golden's module of that function does.
        """
        if not golden.inputs or not target.inputs:
            return True
        shelf = Shelf.of(self.theirs, target.inputs[:1])
        return next(shelf.like(golden.inputs[0], self.ours), None) is not None

    def _room(self, golden: Op) -> Op | None:
        """The partner of the innermost module around `golden` that has one."""
        found = (self.pairs[h].target.op for h in holders(golden) if h in self.pairs)
        return next(found, None)

    def _is_in(self, target: Op, room: Op | None) -> bool:
        return room is None or target.startswith(f"{room}.")


def _largest(face: Face, golden: Faces, target: Faces) -> tuple[Key, ...]:
    """The weight with the most elements."""

    def numel(key: Key) -> int:
        listing = golden.listing if key in golden.listing.values else target.listing
        return math.prod(listing.record(key).shape)

    return (max(face.weights, key=numel),) if face.weights else ()
