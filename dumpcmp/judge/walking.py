"""The order in which a judge walks through the data flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dumpcmp.nouns.row import Pair


def each_after(firsts: Iterable[Pair], before: Mapping[Pair, Sequence[Pair]]) -> Iterator[Pair]:
    """`firsts` and all that leads to them, each after its `before`; circles are cut."""
    begun: set[Pair] = set()
    for first in firsts:
        waiting = [(first, False)]
        while waiting:
            pair, is_done = waiting.pop()
            if is_done:
                yield pair
            elif pair not in begun:
                begun.add(pair)
                waiting.append((pair, True))
                waiting += [(other, False) for other in before.get(pair, ())]
