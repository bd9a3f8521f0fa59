"""Which cases of a test are run every time, and which at length only (``-m long``)."""

from collections.abc import Iterable, Iterator
from itertools import groupby

import pytest

OFTEN = "each_value_once"


def leave_the_rest_to_long_runs(items: Iterable[pytest.Item]) -> None:
    """Mark the combinations of parameters that add no new value of one as ``long``."""
    marked = (item for item in items if isinstance(item, pytest.Function))
    for _, cases in groupby(marked, key=lambda item: (item.parent, item.originalname)):
        combinations = [case for case in cases if case.get_closest_marker(OFTEN)]
        chosen = set(each_value_once(combinations))
        for case in combinations:
            if case not in chosen:
                case.add_marker(pytest.mark.long)


def each_value_once(cases: list[pytest.Function]) -> Iterator[pytest.Function]:
    """So few of `cases` that each value of every parameter is in one, those with most new first."""
    values = {case: frozenset(case.callspec.indices.items()) for case in cases}
    missing = frozenset[tuple[str, int]]().union(*values.values())
    while missing:
        case = max(cases, key=lambda one: len(values[one] & missing))
        missing -= values[case]
        yield case
