"""Lays two sequences of calls side by side: the heaviest alignment that keeps both orders."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

Rungs = list[tuple[int, int]]  # indices on both sides, increasing
Weigh = Callable[[int, int], int]  # what it is worth to lay item i beside item j; 0 forbids it


def aligned(sizes: tuple[int, int], anchors: Sequence[tuple[int, int]], weigh: Weigh) -> Rungs:
    """Pairs of indices, increasing on both sides, of the largest total weight between `anchors`.

    Anchors are pairs that are known; those that cross are left out of account.
    """
    fixed = [(-1, -1), *_increasing(sorted(anchors)), sizes]
    return [
        pair
        for (i, j), (end_i, end_j) in pairwise(fixed)
        for pair in _heaviest(range(i + 1, end_i), range(j + 1, end_j), weigh)
    ]


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
