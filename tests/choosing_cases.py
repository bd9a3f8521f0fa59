"""Which cases of a test are run every time, and which at length only (``-m long``)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest

OFTEN = "each_value_once"
Value = tuple[object, ...]  # of all that one ``parametrize`` gives


def often(cases: Iterable[Any], *names: str) -> list[Any]:
    """All `cases`, those with other `names` marked ``long``."""
    return [
        case if getattr(case, "name", case) in names else pytest.param(case, marks=pytest.mark.long)
        for case in cases
    ]


def every_other(cases: Sequence[Any]) -> list[Any]:
    """All `cases`, of which another test states the law too; each second is long."""
    return [long(case) if number % 2 else case for number, case in enumerate(cases)]


def long(*values: Any) -> Any:
    """The `values` of a case that is one of the long ones."""
    return pytest.param(*values, marks=pytest.mark.long)


def asked_for(items: Iterable[pytest.Item], names: Iterable[str]) -> list[str]:
    """Those of `names` that one of the selected tests has as a parameter."""
    cases = [item.callspec for item in items if hasattr(item, "callspec")]
    given = {value for case in cases for value in case.params.values() if isinstance(value, str)}
    return [name for name in names if name in given]


def leave_the_rest_to_long_runs(items: Iterable[pytest.Item]) -> None:
    """Mark the combinations of parameters that add no new value of one as ``long``."""
    marked = (item for item in items if isinstance(item, pytest.Function))
    for _, cases in groupby(marked, key=lambda item: (item.parent, item.originalname)):
        combinations = [case for case in cases if case.get_closest_marker(OFTEN)]
        others = [case for case in combinations if not case.get_closest_marker("long")]
        chosen = set(each_value_once(others))
        for case in others:
            if case not in chosen:
                case.add_marker(pytest.mark.long)


def each_value_once(cases: list[pytest.Function]) -> Iterator[pytest.Function]:
    """So few of `cases` that each value of every parameter is in one, and none far more often."""
    values = {case: frozenset(_values(case)) for case in cases}
    missing, used = frozenset[Value]().union(*values.values()), Counter[Value]()

    def gain(case: pytest.Function) -> tuple[int, int]:
        return len(values[case] & missing), -sum(used[value] for value in values[case])

    while missing:
        case = max(cases, key=gain)
        missing -= values[case]
        used.update(values[case])
        yield case


def _values(case: pytest.Function) -> Iterator[Value]:
    given = case.callspec.params
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        yield tuple((name.strip(), id(given[name.strip()])) for name in names)
