"""The names that command lines have for checkers, and the tolerances that each of them heeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dumpcmp.judge.checkers import AllCloseValueChecker, ExactChecker, Fp64Checker
from dumpcmp.judge.conditions import Checker
from dumpcmp.judge.likeness import AutomaticValueChecker, CosineChecker, FullValueChecker
from dumpcmp.judge.rounding import ReferenceChecker, RoundingChecker
from dumpcmp.nouns.errors import SelectionError

_MAKERS: dict[str, tuple[Callable[..., Checker], tuple[str, ...]]] = {
    "auto": (ReferenceChecker, ()),  # what rounding explains, and a reference where there is one
    "rounding": (RoundingChecker, ()),
    "allclose": (AllCloseValueChecker, ("rtol", "atol")),
    "pcc": (AutomaticValueChecker, ("pcc", "rtol", "atol")),  # tt-forge's rule
    "cosine": (CosineChecker, ("cosine",)),
    "full": (FullValueChecker, ("pcc", "rtol", "atol")),
    "exact": (ExactChecker, ()),
    "fp64": (Fp64Checker, ()),
}
CHECKERS = tuple(_MAKERS)


def checker_named(name: str, given: Mapping[str, float | None]) -> Checker:
    """The Checker called `name`, with the tolerances that are `given`; None is not given.

    A tolerance beside ``auto`` chooses the first checker that heeds it.
    """
    tolerances = {option: value for option, value in given.items() if value is not None}
    if name == "auto":
        name = next((known for known in CHECKERS if _heeds(known, tolerances)), name)
    if name not in CHECKERS:
        raise SelectionError(
            f"checker {name!r} is not known", hint=f"valid are: {', '.join(CHECKERS)}"
        )
    make, heeded = _MAKERS[name]
    if not _heeds(name, tolerances):
        idle = ", ".join(f"--{option}" for option in tolerances if option not in heeded)
        said = ", ".join(f"--{option}" for option in heeded) or "no tolerance"
        raise SelectionError(f"--checker {name} does not heed {idle}", hint=f"it heeds {said}")
    return make(**tolerances)


def _heeds(name: str, tolerances: Mapping[str, float]) -> bool:
    return tolerances.keys() <= set(_MAKERS[name][1])
