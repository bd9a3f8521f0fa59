"""The user's own numbers of each tensor, beside those of its Summary."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.loading import load
from dumpcmp.nouns.value import Value
from dumpcmp.summary.summary import Summary

T = TypeVar("T")

# Takes a tensor's numbers, a numpy array or on a device a torch tensor; gives a number, or
# numbers by name.
Reduction = Callable[[Any], object]


def load_reduction(name: str) -> Reduction:
    """The function that ``pkg.mod:function`` names."""
    found: Reduction = load("--reduce", name)
    if not callable(found):
        raise SelectionError(f"--reduce {name}: it is no function")
    return found


def results(
    reduction: Reduction, numbers: object, kept: Callable[[Any], T]
) -> tuple[dict[str, T], str]:
    """What `reduction` makes of `numbers`, by name and each as `kept` keeps it, or why nothing."""
    try:
        found = reduction(numbers)
        if not isinstance(found, Mapping):
            found = {getattr(reduction, "__name__", "reduced"): found}
        return {str(name): kept(number) for name, number in found.items()}, ""
    except Exception as error:  # the user's function may raise anything; the summary stands
        return {}, f"{type(error).__name__}: {error}"[:160]


def reduced(summary: Summary, value: Value, reduction: Reduction | None) -> Summary:
    """`summary` with the user's own numbers of `value`, or with why there are none."""
    if reduction is None:
        return summary
    numbers, problem = results(reduction, value.numbers(), float)
    return replace(summary, reduced=numbers, reduce_problem=problem)
