"""Checkers by name: one meaning for each in every command, and tolerances that are heeded."""

import math
from collections.abc import Callable

import pytest

from dumpcmp.judge import (
    AllCloseValueChecker,
    AutomaticValueChecker,
    Checker,
    CosineChecker,
    ExactChecker,
    Fp64Checker,
    FullValueChecker,
    ReferenceChecker,
    RoundingChecker,
    checker_named,
)
from dumpcmp.nouns.errors import CheckError, SelectionError

NAMED: list[tuple[str, dict[str, float | None], Checker]] = [
    ("auto", {}, ReferenceChecker()),
    ("auto", {"pcc": None, "rtol": None}, ReferenceChecker()),
    ("auto", {"rtol": 1e-3}, AllCloseValueChecker(rtol=1e-3)),
    ("auto", {"pcc": 0.9}, AutomaticValueChecker(pcc=0.9)),
    ("auto", {"pcc": 0.9, "atol": 1.0}, AutomaticValueChecker(pcc=0.9, atol=1.0)),
    ("auto", {"cosine": 0.9}, CosineChecker(0.9)),
    ("rounding", {}, RoundingChecker()),
    ("pcc", {}, AutomaticValueChecker()),
    ("full", {"pcc": 0.9}, FullValueChecker(pcc=0.9)),
    ("exact", {}, ExactChecker()),
    ("fp64", {}, Fp64Checker()),
]


@pytest.mark.parametrize("name, given, checker", NAMED)
def test_a_name_means(name: str, given: dict[str, float | None], checker: Checker) -> None:
    found = checker_named(name, given)
    assert type(found) is type(checker) and found == checker


REFUSED: list[tuple[str, dict[str, float | None], str]] = [
    ("vibes", {}, "'vibes' is not known"),
    ("cosine", {"rtol": 1.0}, "does not heed --rtol"),
    ("auto", {"cosine": 0.9, "pcc": 0.9}, "auto does not heed --cosine, --pcc"),
]


@pytest.mark.parametrize("name, given, said", REFUSED)
def test_what_a_checker_does_not_heed_is_refused(
    name: str, given: dict[str, float | None], said: str
) -> None:
    with pytest.raises(SelectionError, match=said):
        checker_named(name, given)


SENSELESS: list[tuple[Callable[..., Checker], str, float]] = [
    *((AllCloseValueChecker, "rtol", n) for n in (math.nan, math.inf, -1.0)),
    *((AllCloseValueChecker, "atol", n) for n in (math.nan, math.inf, -1e-9)),
    *((AutomaticValueChecker, "pcc", n) for n in (math.nan, 2.0, -1.5)),
    (AutomaticValueChecker, "dissimilarity_threshold", math.nan),
    (FullValueChecker, "rtol", math.nan),
    (CosineChecker, "cosine", math.nan),
    (CosineChecker, "cosine", 1.01),
    *((Fp64Checker, name, math.nan) for name in ("multiplier", "floor", "credible", "small")),
    (Fp64Checker, "short_multiplier", math.inf),
]


@pytest.mark.parametrize("checker, name, number", SENSELESS)
def test_a_number_that_makes_no_sense_is_refused(
    checker: Callable[..., Checker], name: str, number: float
) -> None:
    with pytest.raises(CheckError, match=f"{name} is {number:g}"):
        checker(**{name: number})
