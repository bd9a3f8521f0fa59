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


def plural(count: int, one: str, several: str = "") -> str:
    """The form of a word, or of several, that fits `count` of it.

    >>> plural(1, "row"), plural(2, "row"), plural(0, "is", "are")
    ('row', 'rows', 'are')
    """
    return one if count == 1 else several or f"{one}s"


def counted(count: int, one: str, several: str = "") -> str:
    """A count with the form of the word that fits it.

    >>> counted(1, "row"), counted(2_000, "row fails", "rows fail")
    ('1 row', '2000 rows fail')
    """
    return f"{count} {plural(count, one, several)}"


def ranks_named(ranks: Iterable[int]) -> str:
    """Ranks as a sentence names them.

    >>> ranks_named([1]), ranks_named(range(64))
    ('rank 1', 'ranks 0-63')
    """
    known = sorted(set(ranks))
    return f"{plural(len(known), 'rank')} {spans(known, MOST_SPANS)}"


def shorten(line: str, most: int) -> str:
    """`line`, cut where it is longer than `most` characters."""
    return line if len(line) <= most else f"{line[: most - 3]}..."
