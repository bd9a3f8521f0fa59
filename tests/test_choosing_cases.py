"""Which cases are run every time: each value of every parameter, and those that are named."""

from types import SimpleNamespace
from typing import Any

from tests.choosing_cases import each_value_once, often

FAULTS = [("scaled", 1.01), ("dropped", 0.0), ("swapped", 1.0)]
MODES = ["eager", "aten"]


class Case(SimpleNamespace):
    """A combination of parameters, as far as it is looked at."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def iter_markers(self, name: str) -> list[Any]:
        return [SimpleNamespace(args=("mode",)), SimpleNamespace(args=("fault, factor",))]


def combinations() -> list[Any]:
    given = [
        {"mode": mode, "fault": fault, "factor": factor}
        for mode in MODES
        for fault, factor in FAULTS
    ]
    return [Case(callspec=SimpleNamespace(params=params)) for params in given]


def test_each_value_of_every_parameter_is_chosen_once() -> None:
    given = [case.callspec.params for case in each_value_once(combinations())]
    assert {(one["fault"], one["factor"]) for one in given} == set(FAULTS)
    assert len(given) == len(FAULTS)
    assert {one["mode"] for one in given} == set(MODES)


def test_cases_that_are_not_named_are_long() -> None:
    first, second = often(["one", "two"], "two")
    assert second == "two"
    assert first.values == ("one",) and [mark.name for mark in first.marks] == ["long"]
