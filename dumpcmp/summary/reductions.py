"""The user's own numbers of each tensor, beside those of its Summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.value import Value
from dumpcmp.summary.summary import Summary

# Takes a tensor's numbers, a numpy array or on a device a torch tensor; gives a number, or
# numbers by name.
Reduction = Callable[[Any], object]


def load_reduction(name: str) -> Reduction:
    """The function that ``pkg.mod:function`` names."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SelectionError(
            f"cannot load the reduction {name!r}: {error}",
            hint="name a function as package.module:function; it must be importable",
        ) from error
    if not callable(found):
        raise SelectionError(f"the reduction {name!r} is no function")
    reduction: Reduction = found
    return reduction


def reduced(summary: Summary, value: Value, reduction: Reduction) -> Summary:
    """`summary` with the user's own numbers of `value`, or with why there are none."""
    try:
        named = named_results(reduction, reduction(value.numbers()))
        numbers = {name: float(number) for name, number in named.items()}
    except Exception as error:  # the user's function may raise anything; the summary stands
        return replace(summary, reduce_problem=trouble(error))
    return replace(summary, reduced=numbers)


def named_results(reduction: Reduction, result: object) -> dict[str, Any]:
    """What a reduction returned, by name: a mapping, or one number under the function's name."""
    if isinstance(result, Mapping):
        return {str(name): number for name, number in result.items()}
    return {getattr(reduction, "__name__", "reduced"): result}


def trouble(error: Exception) -> str:
    """An exception of the user's function as a summary keeps it."""
    return f"{type(error).__name__}: {error}"[:160]
