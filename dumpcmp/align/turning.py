"""Values whose dims lie in another order on the other side: tokens first, weights transposed."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.pieces import Extents, cut_out
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Cut, DimOrder

ElementsOf = Callable[[Key], NDArray[np.float64] | None]  # the elements of a value, where kept
Portioned = tuple[Key, Cut | None]  # a value, or a part of it
_DIMS = 5  # more are not turned: there are too many orders


def turned(value: NDArray[Any], turn: DimOrder | None, shape: Extents) -> NDArray[Any]:
    """`value` with its dims in the order of `turn`, and with dims of one element as in `shape`."""
    if turn is None:
        return value
    value = value.transpose(turn)
    return value.reshape(shape) if value.size == math.prod(shape) else value


def turns_of(golden: Extents, target: Extents) -> Iterator[DimOrder]:
    """Every order of `target`'s dims that gives `golden`, but for dims of one element.

    >>> list(turns_of((2, 8, 4), (8, 2, 4))), list(turns_of((1, 8), (8,)))
    ([(1, 0, 2)], [(0,)])
    """
    if len(target) > _DIMS or math.prod(golden) != math.prod(target):
        return
    wanted = [size for size in golden if size != 1]
    ones = [n for n, size in enumerate(target) if size == 1]
    others = [n for n, size in enumerate(target) if size != 1]
    if sorted(wanted) != sorted(target[n] for n in others):
        return
    for order in itertools.permutations(others):
        if [target[n] for n in order] == wanted:
            yield (*ones, *order) if list(order) != others else tuple(range(len(target)))


@dataclass
class Turns:
    """In which order the target's dims are golden's, as the values tell.

    Where they do not, because something is wrong with them, what was seen of other values of the
    same two shapes counts.
    """

    ours: ElementsOf
    theirs: ElementsOf
    _found: dict[tuple[Key, Key], DimOrder | None] = field(default_factory=dict)
    _usual: dict[tuple[Extents, Extents], Counter[DimOrder]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def turn(self, golden: Key, target: Key, shapes: tuple[Extents, Extents]) -> DimOrder | None:
        """The order for two values of these shapes; None where they are not the same in any.

        None, too, where they are the same as they lie.
        """
        if (golden, target) not in self._found:
            found = self._seen(golden, target, shapes)
            usual = self._usual[shapes].most_common(1) if shapes[0] != shapes[1] else []
            self._found[golden, target] = found or (usual[0][0] if usual else None)
        return self._found[golden, target]

    def _seen(self, golden: Key, target: Key, shapes: tuple[Extents, Extents]) -> DimOrder | None:
        """The order that the values themselves show."""
        ways, plain = list(turns_of(*shapes)), tuple(range(len(shapes[1])))
        if ways == [plain]:  # nothing but dims of one element
            return plain if shapes[0] != shapes[1] else None
        if shapes[0] == shapes[1] and self.shows((golden, None), (target, None), None):
            return None
        way = next((way for way in ways if self.shows((golden, None), (target, None), way)), None)
        if way is not None:
            self._usual[shapes][way] += 1
        return way

    def shows(self, golden: Portioned, target: Portioned, turn: DimOrder | None) -> bool:
        """Whether parts of two values are the same in the order `turn`."""
        ours, theirs = self.ours(golden[0]), self.theirs(target[0])
        if ours is None or theirs is None:
            return False
        ours = ours if golden[1] is None else cut_out(ours, golden[1])
        theirs = theirs if target[1] is None else cut_out(theirs, target[1])
        return near(ours, turned(theirs, turn, ours.shape))


def near(golden: NDArray[np.float64], target: NDArray[np.float64]) -> bool:
    """Whether two values are the same but for rounding."""
    norm = float(np.linalg.norm(golden))
    if golden.shape != target.shape or not norm or not math.isfinite(norm):
        return False
    return bool(float(np.linalg.norm(target - golden)) <= SAME_VALUE * norm)
