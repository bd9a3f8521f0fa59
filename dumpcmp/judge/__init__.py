"""Turns Metrics into a Verdict: what numbers are admissible for which dtypes, and how deep."""

from dumpcmp.judge.checkers import (
    AllCloseValueChecker,
    AutomaticValueChecker,
    CosineChecker,
    ExactChecker,
    Fp64Checker,
    FullValueChecker,
)
from dumpcmp.judge.conditions import INEXACT, Checker, Conditions, ReferenceErrors, judge
from dumpcmp.judge.rounding import ReferenceChecker, RoundingChecker

__all__ = [
    "INEXACT",
    "AllCloseValueChecker",
    "AutomaticValueChecker",
    "Checker",
    "Conditions",
    "CosineChecker",
    "ExactChecker",
    "Fp64Checker",
    "FullValueChecker",
    "ReferenceChecker",
    "ReferenceErrors",
    "RoundingChecker",
    "judge",
]
