"""Lays two sequences of calls side by side: the heaviest alignment that keeps both orders."""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise

Rungs = list[tuple[int, int]]  # indices on both sides, increasing
Labels = Sequence[Hashable]  # what an item is known by; those of partners are equal
_SHORT = 4096  # products of lengths up to which every pair of items is weighed
_STEP = 64  # items of a stretch that is too long and has no item of its own kind
_WIDTHS = (1, 3, 9, 27)  # of rows of labels that may be unique where single ones are not

Weigh = Callable[[int, int], int]  # what it is worth to lay item i beside item j; 0 forbids it


def aligned(
    sizes: tuple[int, int],
    anchors: Sequence[tuple[int, int]],
    weigh: Weigh,
    labels: tuple[Labels, Labels] | None = None,
) -> Rungs:
    """Pairs of indices, increasing on both sides, of the largest total weight between `anchors`.

    Anchors are pairs that are known; those that cross are left out of account. A long stretch
    without any is first divided at items whose `labels`, or theirs and their neighbours', each
    side has once; what is still long is searched near its diagonal only.
    """
    fixed = [(-1, -1), *_increasing(sorted(anchors)), sizes]
    return [
        pair
        for (i, j), (end_i, end_j) in pairwise(fixed)
        for pair in _between(range(i + 1, end_i), range(j + 1, end_j), weigh, labels)
    ]


def _between(
    left: range, right: range, weigh: Weigh, labels: tuple[Labels, Labels] | None
) -> Rungs:
    if len(left) * len(right) <= _SHORT:
        return _heaviest(left, right, weigh)
    for width in _WIDTHS if labels else ():
        assert labels is not None
        found = _unique(left, right, labels, width)
        rungs = [rung for rung in _increasing(found) if weigh(*rung)]
        if rungs:
            fixed = [(left.start - 1, right.start - 1), *rungs, (left.stop, right.stop)]
            inner = [
                pair
                for (i, j), (end_i, end_j) in pairwise(fixed)
                for pair in _between(range(i + 1, end_i), range(j + 1, end_j), weigh, labels)
            ]
            return sorted([*rungs, *inner])
    return [rung for one, other in _diagonal(left, right) for rung in _heaviest(one, other, weigh)]


def _unique(left: range, right: range, labels: tuple[Labels, Labels], width: int) -> Rungs:
    """Items that begin a row of `width` labels which either side has once."""
    places = [
        _once((tuple(side[i : i + width]), i) for i in stretch if i + width <= stretch.stop)
        for side, stretch in zip(labels, (left, right), strict=True)
    ]
    return sorted((i, places[1][row]) for row, i in places[0].items() if row in places[1])


def _once(rows: Iterable[tuple[tuple[Hashable, ...], int]]) -> dict[tuple[Hashable, ...], int]:
    found: dict[tuple[Hashable, ...], int] = {}
    often: set[tuple[Hashable, ...]] = set()
    for row, index in rows:
        if row in found:
            often.add(row)
        found[row] = index
    return {row: index for row, index in found.items() if row not in often}


def _diagonal(left: range, right: range) -> Iterator[tuple[range, range]]:
    """Short stretches of both sides, in step."""
    num = max(1, math.ceil(max(len(left), len(right)) / _STEP))
    for n in range(num):
        yield (
            left[n * len(left) // num : (n + 1) * len(left) // num],
            right[n * len(right) // num : (n + 1) * len(right) // num],
        )


def _increasing(pairs: Sequence[tuple[int, int]]) -> Rungs:
    """The longest subsequence of `pairs`, sorted by their first, whose second increases too."""
    tails: list[int] = []  # the smallest second that ends an increasing run of each length
    ends: list[int] = []  # the pair that has it
    before: dict[int, int] = {}
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(tails, second)
        tails[length : length + 1], ends[length : length + 1] = [second], [index]
        if length:
            before[index] = ends[length - 1]
    return [pairs[index] for index in reversed(list(_chain(ends, before)))]


def _chain(ends: list[int], before: dict[int, int]) -> Iterator[int]:
    index = ends[-1] if ends else None
    while index is not None:
        yield index
        index = before.get(index)


def _heaviest(left: range, right: range, weigh: Weigh) -> Rungs:
    """The heaviest alignment of two short ranges, by dynamic programming."""
    if not left or not right:
        return []
    weights = [[weigh(i, j) for j in right] for i in left]
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            here = weights[i][j] + best[i + 1][j + 1] if weights[i][j] else 0
            best[i][j] = max(here, best[i + 1][j], best[i][j + 1])
    return list(_walk(left, right, weights, best))


def _walk(
    left: range, right: range, weights: list[list[int]], best: list[list[int]]
) -> Iterator[tuple[int, int]]:
    i = j = 0
    while i < len(left) and j < len(right):
        weight = weights[i][j]
        if weight and best[i][j] == weight + best[i + 1][j + 1]:
            yield left[i], right[j]
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
