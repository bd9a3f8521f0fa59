"""Values of one run that are parts of the other's: what a loop computes piece by piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Cut, Pair, PairedBy
from dumpcmp.shadows.fingerprints import Fingerprint
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.slices import Marginals

_MOST = 2048  # values of each side that are looked at in a step
_MOST_ELEMENTS = 1 << 24


@dataclass(eq=False)
class PartMatching:
    """Finds the parts among what each side alone has."""

    golden: Mapping[Key, Quantity]  # of one step
    target: Mapping[Key, Quantity]
    _marginals: dict[int, Marginals] = field(default_factory=dict)

    def pairs(self) -> Iterator[Pair]:
        """Each value that is a part of one of the other side's, beside that part."""
        taken = set[Key]()
        for key, whole, cut in self._parts(self.target, self.golden):
            taken.add(key)
            yield Pair(whole, key, PairedBy.VALUE, golden_part=cut)
        for key, whole, cut in self._parts(self.golden, self.target):
            yield Pair(key, whole, PairedBy.VALUE, target_part=cut)

    def _parts(
        self, parts: Mapping[Key, Quantity], wholes: Mapping[Key, Quantity]
    ) -> Iterator[tuple[Key, Key, Cut]]:
        by_rank = defaultdict[int, list[tuple[Key, Quantity]]](list)
        for key, quantity in list(wholes.items())[:_MOST]:
            try:
                if quantity.is_telling and quantity.tensor.numel() <= _MOST_ELEMENTS:
                    by_rank[quantity.tensor.ndim].append((key, quantity))
            except DumpcmpError:
                continue
        for key, part in list(parts.items())[:_MOST] if by_rank else ():
            found = self._found(part, by_rank)
            if found is not None:
                yield key, *found

    def _found(
        self, part: Quantity, wholes: Mapping[int, Sequence[tuple[Key, Quantity]]]
    ) -> tuple[Key, Cut] | None:
        try:
            if not part.is_telling:
                return None
            shape, printed = tuple(part.tensor.shape), part.print
        except DumpcmpError:
            return None
        for is_stacked in (False, True):
            for key, whole in wholes.get(len(shape) + is_stacked, ()):
                cut = self._cut(shape, printed, whole, is_stacked)
                if cut is not None:
                    return key, cut
        return None

    def _cut(
        self, shape: tuple[int, ...], printed: Fingerprint, whole: Quantity, is_stacked: bool
    ) -> Cut | None:
        """The part of `whole` that has these numbers."""
        size = tuple(whole.tensor.shape)
        for axis in range(len(size)):
            others = size[:axis] + size[axis + 1 :]
            own = shape if is_stacked else shape[:axis] + shape[axis + 1 :]
            if others != own or (not is_stacked and shape[axis] >= size[axis]):
                continue
            marginals = self._marginals.setdefault(id(whole), Marginals(whole.tensor))
            for place in marginals.slices_of(printed):
                if place.dim == axis and place.stride == 1:
                    return Cut(axis, place.first, place.first + place.length, is_stacked)
        return None
