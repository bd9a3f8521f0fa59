"""Find the layout that nobody stated: try hypotheses on the shards until one gives golden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.candidates import (
    MERGED,
    Outline,
    candidates,
    supposed,
    with_unequal_parts,
)
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.unshard import (
    Distance,
    Load,
    Plan,
    Whole,
    distance,
    slices,
    squares,
    unshard,
)
from dumpcmp.judge.tolerances import ACCIDENT, REGION
from dumpcmp.nouns.layouts import Layout, over_all_ranks
from dumpcmp.nouns.value import Kind, Value, widen

_SAMPLED = 1 << 20  # elements of a block that decide whether it fits
_SIGNED = 4096  # elements of a slice that its signature looks at
_SHOWN = 6  # hypotheses that a message quotes
FEW = 16  # ranks of which each may be held against each; and as many are asked first of more
LOOKED_AT = 4096  # elements of a value that tell whether they are many different ones


@dataclass(frozen=True, slots=True)
class Question:
    """What is known before solving, and which kinds of answer make sense for the value."""

    golden: Value
    shards: Sequence[Shard]
    load: Load
    limit: float  # rel_l2 up to which a hypothesis fits
    may_be_partial: bool = True  # no for gradients of parameters: they must have been reduced
    may_be_scaled: bool = False  # yes for gradients of activations: a mean over fewer samples
    sample_dim: int = 0  # that samples lie along: another one after a transposition

    @property
    def outline(self) -> Outline:
        """What is known without looking at elements."""
        shards = tuple([Shard(own.rank, own.shape, own.layout) for own in self.shards])
        may_be = self.may_be_partial, self.may_be_scaled
        return Outline(shards, self.golden.shape, *may_be, self.sample_dim)

    @property
    def is_telling(self) -> bool:
        """Whether golden's elements are so many different ones that a region is no other.

        A mask or the numbers of experts are not, also where they were cast to floats.
        """
        some = self.golden.bits.reshape(-1)[:LOOKED_AT]
        return ACCIDENT * len(np.unique(some)) >= some.size

    def merged_sizes(self, n: int, size: int) -> Shape | None:
        """Sizes of parts merged in dim `n`, if an axis of `size` splits each of them."""
        return _merged_sizes(self.golden, self.load(0), n, size)

    def distance(self, plan: Plan, position: int, tile: int, enough: float = math.inf) -> float:
        """The rel_l2 of the shard at `position` from the region of golden that a tile is.

        Of large blocks a sample decides: the beginning of each. Infinite where the squared error
        is more than `enough`.
        """
        error = norm = 0.0
        mine = self.load(position)
        if Kind.COMPLEX in (kinds := {mine.dtype.kind, self.golden.dtype.kind}) and len(kinds) > 1:
            return math.inf  # complex numbers are no layout of real ones
        for there, here in slices(plan.tiles[tile].region):
            part, shard = self.golden.bits[there], mine.bits[here]
            if part.size > _SAMPLED:
                rows = max(1, len(part) * _SAMPLED // part.size)
                part, shard = part[:rows], shard[:rows]
            more = squares(Value(self.golden.dtype, part), Value(mine.dtype, shard))
            error, norm = error + more[0], norm + more[1]
            if error > enough:
                return math.inf
        return Distance(error, norm).rel_l2


@dataclass(frozen=True, slots=True)
class Solved:
    """The layout that fits, and how well."""

    plan: Plan
    whole: Whole
    rel_l2: float


@dataclass(frozen=True, slots=True)
class Unsolved:
    """No hypothesis fits: what was tried, and the one that came closest."""

    layouts: tuple[Layout, ...]
    closest: Plan | None = None
    rel_l2: float = math.inf

    @property
    def tried(self) -> tuple[str, ...]:
        """The layouts in words, each once."""
        return tuple(dict.fromkeys(map(str, self.layouts)))

    def __str__(self) -> str:
        tried = self.tried
        if not tried:
            return "no layout gives golden's shape from these shards"
        shown = ", ".join(f"'{text}'" for text in tried[:_SHOWN])
        more = f" and {len(tried) - _SHOWN} more" if len(tried) > _SHOWN else ""
        near = f"; closest '{self.closest.layout}' with rel_l2 " if self.closest else ""
        return f"no layout fits: tried {shown}{more}" + (near and f"{near}{self.rel_l2:.2g}")


def solve(question: Question, first: Layout | None = None) -> Solved | Unsolved:
    """Try every layout that gives golden's shape, likeliest first, and keep the first that fits.

    `first`, the layout of a like value, is tried before all others. Where many ranks hold just what
    golden has and others do not, those are wrong, and no other layout is looked for.
    """
    tried: list[Layout] = []
    closest, nearest = None, math.inf
    for plan in hypotheses(question, first):
        tried.append(plan.layout)
        error, whole = _fit(question, plan)
        if whole is not None and error <= question.limit:
            return Solved(plan, whole, error)
        if error < nearest:
            closest, nearest = plan, error
        if _is_broken(question, plan):
            break
    return Unsolved(tuple(tried), closest, nearest)


def is_much(num: int, num_ranks: int) -> bool:
    """Whether so many ranks hold what golden has by a layout that it is no accident.

    In layouts of one shape few ranks hold the same: the first and the last, or a diagonal.
    """
    return num_ranks > FEW and 4 * num >= num_ranks


def _is_broken(question: Question, plan: Plan) -> bool:
    """Whether much of many ranks' shards fits, by a plan that does not: some first, then all."""
    num, tiles = len(question.shards), plan.tiles
    if num <= FEW or plan.adds_up or question.golden.numel < ACCIDENT * max(1, len(tiles)):
        return False
    golden = question.golden.bits
    held = [n for n, t in enumerate(tiles) if any(golden[at].size for at, _ in slices(t.region))]
    places = [(at, n) for n in held for at in tiles[n].terms[0]]
    chosen = np.random.default_rng(0).permutation(len(places))
    most = REGION * question.limit

    def num_fitting(some: NDArray[np.int64]) -> int:
        return sum(question.distance(plan, *places[n]) <= most for n in some)

    if not is_much(num_fitting(chosen[: FEW + 1]), FEW + 1) or not question.is_telling:
        return False
    return is_much(num_fitting(chosen), num)


def hypotheses(question: Question, first: Layout | None = None) -> Iterator[Plan]:
    """A plan for every layout that gives golden's shape, likeliest first, each once."""
    outline, shards = question.outline, question.shards
    likeliest = list(supposed(outline, first)) if first is not None else []
    known = {(one.layout, one.sizes) for one in likeliest}
    others = itertools.chain(
        candidates(outline), with_unequal_parts(outline, question.merged_sizes)
    )
    for one in itertools.chain(
        likeliest, (other for other in others if (other.layout, other.sizes) not in known)
    ):
        yield one.plan.of(shards)


def supposing(question: Question, layout: Layout) -> Plan | None:
    """The plan for the shards if they lay as `layout` says, where that gives golden's shape.

    Where nothing is known of the shards but their ranks, its one axis is that of all ranks: what
    took the place of an op that keeps to a mesh may know nothing of it.
    """
    for sentence in dict.fromkeys((layout.sentence, over_all_ranks(layout.sentence))):
        plan = next(hypotheses(question, sentence), None)
        if plan is not None and plan.layout == sentence:
            return plan
    return None


def _fit(question: Question, plan: Plan) -> tuple[float, Whole | None]:
    """How far from golden `plan` leads; what fails in the first region is not carried out."""
    if len(plan.tiles) > 1 and not plan.adds_up:
        error = question.distance(plan, plan.tiles[0].terms[0][0], 0)
        if error > REGION * question.limit * math.sqrt(len(plan.tiles)):
            return error, None
    whole = unshard(plan, question.load)
    apart = max((found.rel_l2 for found in whole.disagreements), default=0.0)
    if apart > question.limit:
        return apart, None
    return distance(question.golden, whole.value).rel_l2, whole


def _merged_sizes(golden: Value, first: Value, n: int, size: int) -> Shape | None:
    """Sizes of the parts, read off where the slices of the first shard lie in golden.

    Each slice along the dim has a signature; the first shard's runs start where the parts do.
    """
    ours, theirs = golden.shape, first.shape
    if (ours[:n], ours[n + 1 :]) != (theirs[:n], theirs[n + 1 :]):
        return None
    if not golden.numel or not first.numel:  # an empty shard shows no part
        return None
    nearest = _nearest(_signatures(golden, n), _signatures(first, n))
    starts = np.flatnonzero(np.diff(nearest, prepend=-2) != 1)
    lengths = np.diff([*starts, len(nearest)])
    sizes = np.diff([*nearest[starts], golden.shape[n]])
    likely = nearest[0] == 0 and 1 < len(sizes) <= len(MERGED)
    return tuple(map(int, sizes)) if likely and np.array_equal(lengths * size, sizes) else None


def _signatures(value: Value, n: int) -> NDArray[np.float64]:
    """One number for each slice of `value` along dim `n`: a projection on fixed random weights."""
    some, budget = [slice(None)], _SIGNED
    moved = np.moveaxis(value.bits, n, 0)
    for size in moved.shape[1:]:
        some.append(slice(max(1, min(size, budget))))
        budget //= max(1, min(size, budget))
    rows = widen(moved[tuple(some)], value.dtype).reshape(value.shape[n], -1)
    weights = random_weights(rows.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite resembles nothing
        projected: NDArray[np.float64] = np.abs(rows.astype(np.complex128) @ weights)
    return projected


@lru_cache(32)
def random_weights(num: int) -> NDArray[np.float64]:
    """The first `num` of the weights by which numbers are told apart."""
    return np.random.default_rng(0).standard_normal(num)


def _nearest(theirs: NDArray[np.float64], mine: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each signature of `mine` the position of the nearest of `theirs`."""
    order = np.argsort(theirs, kind="stable")
    above = np.searchsorted(theirs[order], mine).clip(1, len(theirs) - 1)
    low, high = theirs[order[above - 1]], theirs[order[above]]
    nearest: NDArray[np.int64] = order[np.where(mine - low <= high - mine, above - 1, above)]
    return nearest
