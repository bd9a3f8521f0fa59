"""Which effect of one run is which of the other's, and which of them is another computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.value import Portion
from dumpcmp.shadows.fingerprints import same_elements
from dumpcmp.shadows.program import StepEffect
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.shadow import Shadow
from dumpcmp.shadows.slices import Marginals, is_covered_in_order, is_part
from dumpcmp.shadows.stated_parts import joined, make_up, part_at, stated_portion


@dataclass(frozen=True, slots=True, eq=False)
class ShownEffect:
    """An effect of a run, and what it is."""

    effect: StepEffect
    quantity: Quantity
    leaf: Quantity | None = None  # whose gradient it is

    @property
    def rank(self) -> int:
        return self.effect.value.rank

    @property
    def is_given_out(self) -> bool:
        """Whether the model itself gave it out, as a tensor among others."""
        return self.effect.value.key.slot.is_output and not self.effect.name.startswith("result ")

    @property
    def place(self) -> tuple[int, int]:
        """The rank that has it, and the microbatch."""
        return self.rank, self.effect.value.key.step

    def is_same(self, other: ShownEffect) -> bool:
        return self.quantity.is_same(other.quantity)

    @property
    def is_nothing(self) -> bool:
        """Whether it is what float64 leaves of terms that cancel."""
        try:
            return self.quantity.is_nothing
        except DumpcmpError:
            return False


_TERMS = "what the ranks return are terms of {}, and nothing that was recorded adds them up"
_REORDERED = "the ranks return all parts of {}, but not in its order"
EffectPair = tuple[ShownEffect, ShownEffect]  # golden's, and the target's


@dataclass(eq=False)
class PairedEffects:
    """The effects of both runs."""

    pairs: list[EffectPair] = field(default_factory=list)  # all, by which they are counted
    differing: list[EffectPair] = field(default_factory=list)
    lone: list[tuple[str, StepEffect]] = field(default_factory=list)  # side, and what it has alone
    uncovered: list[tuple[str, StepEffect]] = field(default_factory=list)  # ranks have parts of it
    unsettled: list[tuple[str, StepEffect, str]] = field(default_factory=list)  # and why
    remarks: list[str] = field(default_factory=list)


def paired_effects(golden: Shadow, target: Shadow) -> PairedEffects:
    """Effects of one name; of what is left, those of one leaf or quantity; and what is left."""
    ours, theirs = ([_shown(shadow, effect) for effect in shadow.program.effects]
                    for shadow in (golden, target))  # fmt: skip
    ranks = [
        sorted({each.place if shadow.program.num_parts > 1 else (each.rank, 0) for each in side})
        for shadow, side in ((golden, ours), (target, theirs))
    ]
    is_by_rank = ranks[0] == ranks[1] and len(ranks[0]) > 1
    if is_by_rank and (by_rank := _rank_by_rank(ours, theirs)) is not None:
        return by_rank
    if len({*ranks[0], *ranks[1]}) > 1:
        if min(map(len, ranks)) > 1:
            ours = list(_put_together(ours, golden))
        is_golden_whole = len(ranks[0]) == 1
        if is_golden_whole or len(ranks[1]) > 1:
            return _OverRanks(ours, theirs, golden, target, "golden").paired()
        return _OverRanks(theirs, ours, target, golden, "target").paired()
    found = PairedEffects()
    for is_pair in (_same_name, _same_leaf, ShownEffect.is_same):
        for its in list(ours):
            mine = next((m for m in theirs if is_pair(its, m) and _same_kind(its, m)), None)
            if mine is not None:
                found.pairs.append((its, mine))
                ours.remove(its)
                theirs.remove(mine)
    for its, mine in _sole_results(ours, theirs):  # one on each side, under other names
        found.pairs.append((its, mine))
        ours.remove(its)
        theirs.remove(mine)
    packed = [*_packed(ours, theirs), *((one, other) for other, one in _packed(theirs, ours))]
    # Whether a buffer is left otherwise that calls of one side alone are known to make is told by
    # the numbers in it.
    found.lone += (("golden", each.effect) for each in ours if not each.effect.is_state)
    found.lone += (("target", each.effect) for each in theirs if not each.effect.is_state)
    for pair in found.pairs:
        if not pair[0].is_same(pair[1]) and not _is_part_of_other(pair, found.remarks):
            found.differing.append(pair)
    found.pairs += packed
    return found


def _sole_results(
    ours: Sequence[ShownEffect], theirs: Sequence[ShownEffect]
) -> Iterator[EffectPair]:
    """The only effect of either side, or else the only ones that the model gave out as they are.

    What lies in objects beside them, such as a cache, is no other name of such a result.
    """
    given = [[each for each in side if each.is_given_out] for side in (ours, theirs)]
    for its, mine in ((ours, theirs), given):
        if len(its) == len(mine) == 1 and _same_kind(its[0], mine[0]):
            yield its[0], mine[0]
            return


def _packed(
    wholes: list[ShownEffect], parts: list[ShownEffect]
) -> Iterator[tuple[ShownEffect, ShownEffect]]:
    """Gradients of weights that the other side has in parts, and those; they are taken away."""
    for whole in [each for each in wholes if each.leaf is not None]:
        try:
            some = _joined_into(whole, [each for each in parts if each.leaf is not None])
        except DumpcmpError:
            continue
        if some:
            wholes.remove(whole)
        for part in some:
            parts.remove(part)
            yield whole, part


def _joined_into(whole: ShownEffect, parts: Sequence[ShownEffect]) -> Sequence[ShownEffect]:
    """Those of `parts` that stand beside each other and make `whole` together; or none."""
    wanted = whole.quantity.tensor
    alike = [p for p in parts if p.quantity.tensor.shape[1:] == wanted.shape[1:]]
    for first in range(len(alike)):
        for last in range(first + 2, len(alike) + 1):
            tensors = [each.quantity.tensor for each in alike[first:last]]
            size = sum(each.shape[0] for each in tensors if each.ndim)
            if not wanted.ndim or size > wanted.shape[0]:
                break
            if size == wanted.shape[0] and same_elements(torch.cat(tensors), wanted):
                return alike[first:last]
    return ()


def _rank_by_rank(
    ours: Sequence[ShownEffect], theirs: Sequence[ShownEffect]
) -> PairedEffects | None:
    """The effects where each rank of one run has those of the same rank of the other."""
    named = {(each.place, each.effect.name): each for each in theirs}
    pairs = [(its, named.pop((its.place, its.effect.name), None)) for its in ours]
    found = [(its, mine) for its, mine in pairs if mine is not None and its.is_same(mine)]
    return PairedEffects(found) if len(found) == len(pairs) and not named else None


def _put_together(effects: Sequence[ShownEffect], shadow: Shadow) -> Iterator[ShownEffect]:
    """The effects, of which those are one that lie in parts over ranks, as their layouts say."""
    named: dict[str, list[ShownEffect]] = {}
    for each in effects:
        named.setdefault(each.effect.name, []).append(each)
    for some in named.values():
        try:
            portions = [stated_portion(shadow.record(each.effect.value)) for each in some]
            whole = joined([each.quantity.tensor for each in some], portions)
        except DumpcmpError:
            whole = None
        if whole is None:
            yield from some
        else:
            yield replace(some[0], quantity=Quantity(_tensor=whole))


def _same_name(one: ShownEffect, other: ShownEffect) -> bool:
    return bool(one.effect.name) and one.effect.name == other.effect.name


def _is_namesake(one: ShownEffect, other: ShownEffect) -> bool:
    """Whether both have one name, or are gradients of one weight, which a wrapper names anew."""
    return _same_name(one, other) or _same_leaf(one, other)


def _shown(shadow: Shadow, effect: StepEffect) -> ShownEffect:
    leaf = None if effect.leaf is None else shadow.quantity(effect.leaf)
    return ShownEffect(effect, shadow.quantity(effect.value), leaf)


def _same_leaf(one: ShownEffect, other: ShownEffect) -> bool:
    """Whether both are gradients of the same numbers that the runs started from."""
    return one.leaf is not None and one.leaf is other.leaf


def _same_kind(one: ShownEffect, other: ShownEffect) -> bool:
    return one.effect.is_state == other.effect.is_state


def _is_part_of_other(pair: EffectPair, remarks: list[str]) -> bool:
    """Whether one side returns a part of what the other returns, which is told."""
    try:
        golden, target = pair[0].quantity.tensor, pair[1].quantity.tensor
    except DumpcmpError:
        return False
    fewer, more = ("mine", "golden's") if target.numel() < golden.numel() else ("golden", "my")
    small, large = sorted((golden, target), key=lambda tensor: tensor.numel())
    found = is_part(small, large)
    if found:
        remarks.append(f"{fewer} returns {found} of {more} {pair[1].effect.name}")
    return bool(found)


@dataclass(eq=False)
class _OverRanks:
    """Effects of runs on several ranks: each rank's is one of the whole run's, or a slice of it.

    Each of the whole run's is on some rank, or all of its slices are on ranks. What a rank hands on
    to the next, as a stage of a pipeline does, is some value of the whole run. A number that a rank
    returns of its own data alone, such as a loss, is the whole run's as the mean over ranks.
    """

    wholes: Sequence[ShownEffect]
    parts: Sequence[ShownEffect]
    shadow: Shadow  # of the whole run
    other: Shadow
    side: str  # which the whole run is
    found: PairedEffects = field(default_factory=PairedEffects)

    def paired(self) -> PairedEffects:
        other = "target" if self.side == "golden" else "golden"
        if not self.wholes or not self.parts:
            self.found.lone += ((self.side, each.effect) for each in self.wholes)
            self.found.lone += ((other, each.effect) for each in self.parts)
            return self.found
        shown = [part for part in self.parts if self._is_of_whole(part)]
        settled: set[str] = set()
        for whole in filter(self._is_asked, self.wholes):
            named = [part for part in self.parts if _is_namesake(whole, part)]
            others = [part for part in named if part not in shown]
            pair = self._pair(whole, self._namesake(whole, others or self.parts))
            self.found.pairs.append(pair)
            is_covered = self._is_covered(whole, shown)
            why = self._why_reordered(whole, shown) if is_covered else self._why_terms(whole)
            if why:
                self.found.unsettled.append((self.side, whole.effect, why))
                settled.add(whole.effect.name)
            elif is_covered:
                continue
            elif all(part in shown for part in named):
                self.found.uncovered.append((self.side, whole.effect))
            elif pair[self.side == "golden"] not in shown:
                self.found.differing.append(pair)
        settled |= {each.effect.name for each in self.wholes if self._is_mean(each)}
        for part in self.parts:
            if part not in shown and part.effect.name not in settled and not self._hands_on(part):
                self.found.differing.append(self._pair(self._namesake(part, self.wholes), part))
        return self.found

    def _is_asked(self, whole: ShownEffect) -> bool:
        """Whether it may be asked of ranks; what these hand back for their inputs is their own."""
        leaf = whole.effect.leaf
        is_of_weight = leaf is None or leaf.key.slot.is_weight
        return is_of_weight or any(_is_namesake(whole, part) for part in self.parts)

    def _why_terms(self, whole: ShownEffect) -> str:
        named = [each for each in self.parts if _is_namesake(whole, each)]
        return _TERMS.format(whole.effect.name) if _are_terms(named, whole) else ""

    def _why_reordered(self, whole: ShownEffect, shown: Sequence[ShownEffect]) -> str:
        if self._are_all_stated(whole):
            return ""
        named = sorted((e for e in shown if _is_namesake(whole, e)), key=lambda each: each.place)
        places = [place for each in named if (place := _place(each, whole))]
        is_ordered = all(a[0] != b[0] or a[1][0] <= b[1][0] for a, b in pairwise(places))
        if whole.leaf is None:  # a gradient lies as its weight does
            is_ordered &= all(list(indices) == sorted(indices) for _, indices in places)
        return "" if is_ordered else _REORDERED.format(whole.effect.name)

    def _pair(self, whole: ShownEffect, part: ShownEffect) -> EffectPair:
        return (whole, part) if self.side == "golden" else (part, whole)

    def _namesake(self, one: ShownEffect, others: Sequence[ShownEffect]) -> ShownEffect:
        named = [each for each in others if _is_namesake(one, each)]
        own = [each for each in named if each.rank == one.rank]
        return next(iter([*own, *named, *others]))

    def _portion(self, part: ShownEffect) -> Portion | None:
        """Which part of its whole a rank has, as its layout says."""
        return stated_portion(self.other.record(part.effect.value))

    def _is_as_stated(self, part: ShownEffect, whole: ShownEffect) -> bool:
        portion = self._portion(part)
        held = part_at(whole.quantity.tensor, portion) if portion is not None else None
        return held is not None and same_elements(held, part.quantity.tensor)

    def _are_all_stated(self, whole: ShownEffect) -> bool:
        """Whether the ranks have all of a value, each of them the part that its layout says."""
        named = [each for each in self.parts if _is_namesake(whole, each)]
        portions = [p for each in named if (p := self._portion(each)) is not None]
        is_stated = bool(named) and len(portions) == len(named)
        return (
            is_stated
            and all(self._is_as_stated(each, whole) for each in named)
            and make_up(portions, tuple(whole.quantity.tensor.shape))
        )

    def _is_of_whole(self, part: ShownEffect) -> bool:
        named = [each for each in self.wholes if _is_namesake(each, part)]
        if any(each.is_nothing for each in named):
            return part.is_nothing
        try:
            return any(
                each.is_same(part) or self._is_as_stated(part, each) or _is_slice(part, each)
                for each in named
            ) or any(
                each.is_same(part) or _is_slice(part, each)
                for each in self.wholes
                if each not in named and not (named and part.leaf is not None)
            )
        except DumpcmpError:
            return False

    def _is_covered(self, its: ShownEffect, shown: Sequence[ShownEffect]) -> bool:
        if its.is_nothing:
            return all(mine.is_nothing for mine in self.parts if _is_namesake(its, mine))
        for mine in sorted(shown, key=lambda each: not _is_namesake(its, each)):
            if its.is_same(mine):
                return True
        try:
            if self._are_all_stated(its):
                return True
            parts = [mine.quantity for mine in shown if _is_smaller(mine, its)]
            whole = Marginals(its.quantity.tensor)
            return is_covered_in_order(whole, parts) or self._is_mean(its)
        except DumpcmpError:
            return False

    def _is_mean(self, its: ShownEffect) -> bool:
        """Whether it is one number, and the mean of what all ranks return by its name.

        Of gradients, each rank may have a term that nobody adds up.
        """
        if its.effect.value.key.slot.is_gradient:
            return False
        named = [each for each in self.parts if _is_namesake(its, each)]
        try:
            if its.quantity.tensor.numel() != 1 or len(named) < 2:
                return False
            numbers = [each.quantity.tensor.reshape(()) for each in named]
            return same_elements(torch.stack(numbers).mean(), its.quantity.tensor.reshape(()))
        except (DumpcmpError, RuntimeError):
            return False

    def _hands_on(self, mine: ShownEffect) -> bool:
        try:
            known = {id(each): each for each in self.shadow.quantities.values()}
            return id(mine.quantity) in known or any(
                each.print.is_same(mine.quantity.print) and mine.quantity.is_telling
                for each in known.values()
                if not each.problem
            )
        except DumpcmpError:
            return False


def _is_slice(part: ShownEffect, whole: ShownEffect) -> bool:
    return _place(part, whole) is not None


def _place(part: ShownEffect, whole: ShownEffect) -> tuple[int, Sequence[int]] | None:
    """The dim of `whole` in which `part` lies, and its indices there."""
    if not _is_smaller(part, whole):
        return None
    return next(Marginals(whole.quantity.tensor).places_in_order(part.quantity), None)


def _is_smaller(part: ShownEffect, whole: ShownEffect) -> bool:
    return part.quantity.tensor.numel() < whole.quantity.tensor.numel()


def _are_terms(parts: Sequence[ShownEffect], whole: ShownEffect) -> bool:
    """Whether the whole, or each slice of it, is the sum or the mean of what some ranks have."""
    try:
        found = [each.quantity.tensor for each in sorted(parts, key=lambda each: each.place)]
        if len(found) < 2 or len({each.shape for each in found}) > 1:
            return False
        return any(_add_up(groups, whole.quantity.tensor) for groups in _groupings(found))
    except DumpcmpError:
        return False


def _groupings(terms: Sequence[Tensor]) -> Iterator[list[Sequence[Tensor]]]:
    """All together, neighbouring ranks, or every so-many-th: as the axes of a mesh group them."""
    for size in range(len(terms), 1, -1):
        if len(terms) % size == 0:
            stride = len(terms) // size
            yield [terms[at : at + size] for at in range(0, len(terms), size)]
            yield [terms[at::stride] for at in range(stride)]


def _add_up(groups: Sequence[Sequence[Tensor]], whole: Tensor) -> bool:
    sums = [torch.stack(list(group)).sum(0) for group in groups]
    for share in (1, len(groups[0])):
        parts = [Quantity(_tensor=each / share) for each in sums]
        if all(part.tensor.shape == whole.shape for part in parts):
            if all(same_elements(part.tensor, whole) for part in parts):
                return True
        elif is_covered_in_order(Marginals(whole), parts):
            return True
    return False
