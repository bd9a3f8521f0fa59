"""Which cases of a test are run every time, and which at length only (``-m long``)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

import pytest

OFTEN = "each_value_once"
Value = tuple[str, int]  # the name of a parameter, and the number of its value


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
    """So few of `cases` that each value of every parameter is in one, and none far more often."""
    values = {case: frozenset(case.callspec.indices.items()) for case in cases}
    missing, used = frozenset[Value]().union(*values.values()), Counter[Value]()

    def gain(case: pytest.Function) -> tuple[int, int]:
        return len(values[case] & missing), -sum(used[value] for value in values[case])

    while missing:
        case = max(cases, key=gain)
        missing -= values[case]
        used.update(values[case])
        yield case
