"""Numbers and ranks in words, so short that a line holds hundreds of them."""

from __future__ import annotations

from collections.abc import Iterable

MOST_SPANS = 8  # of numbers that a sentence lists

_OF_SEVERAL = {"is": "are", "has": "have", "lacks": "lack"}


def runs_of(numbers: Iterable[int | range]) -> list[range]:
    """Numbers, and runs of them, as the fewest runs, in order.

    >>> runs_of([7, range(0, 3), 3])
    [range(0, 4), range(7, 8)]
    """
    found: list[range] = []
    runs = (each if isinstance(each, range) else range(each, each + 1) for each in numbers)
    for run in sorted(runs, key=lambda run: run.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return found


def spans(numbers: Iterable[int | range], most: int | None = None) -> str:
    """Numbers as ``0-3, 7``; of more than `most` spans the rest is counted.

    >>> spans([7, 0, 1, 2, 3])
    '0-3, 7'
    """
    found = runs_of(numbers)
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


def ranks_named(ranks: Iterable[int | range]) -> str:
    """Ranks, and runs of them, as a sentence names them.

    >>> ranks_named([1]), ranks_named(range(64))
    ('rank 1', 'ranks 0-63')
    """
    known = runs_of(ranks)
    return f"{plural(sum(map(len, known)), 'rank')} {spans(known, MOST_SPANS)}"


def said_of(ranks: Iterable[int | range], does: str) -> str:
    """A sentence of ranks, whose verb is given for one of them.

    >>> said_of([1], "is missing"), said_of([1, 2], "is missing")
    ('rank 1 is missing', 'ranks 1-2 are missing')
    """
    known = runs_of(ranks)
    verb, space, rest = does.partition(" ")
    if sum(map(len, known)) > 1:
        verb = _OF_SEVERAL.get(verb, verb)
    return f"{ranks_named(known)} {verb}{space}{rest}"


def shorten(line: str, most: int) -> str:
    """`line`, cut where it is longer than `most` characters."""
    return line if len(line) <= most else f"{line[: most - 3]}..."
