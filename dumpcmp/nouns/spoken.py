"""Numbers and ranks in words, so short that a line holds hundreds of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

MOST_SPANS = 8  # of numbers that a sentence lists


def spans(numbers: Iterable[int], most: int | None = None) -> str:
    """Numbers as ``0-3, 7``; of more than `most` spans the rest is counted.

    >>> spans([7, 0, 1, 2, 3])
    '0-3, 7'
    """
    runs = groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0])
    found = [[number for _, number in run] for _, run in runs]
    shown = found if most is None or len(found) <= most else found[:most]
    said = ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in shown)
    rest = sum(map(len, found)) - sum(map(len, shown))
    return f"{said} and {rest} more" if rest else said


def ranks_named(ranks: Iterable[int]) -> str:
    """Ranks as a sentence names them.

    >>> ranks_named([1]), ranks_named(range(64))
    ('rank 1', 'ranks 0-63')
    """
    known = sorted(set(ranks))
    return f"rank{'s' * (len(known) != 1)} {spans(known, MOST_SPANS)}"
