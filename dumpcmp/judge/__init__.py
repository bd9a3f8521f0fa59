"""Turns Metrics into a Verdict: what numbers are admissible for which dtypes, and how deep."""

from dumpcmp.judge.catalogue import checker_named
from dumpcmp.judge.checkers import AllCloseValueChecker, ExactChecker, Fp64Checker
from dumpcmp.judge.conditions import INEXACT, Checker, Conditions, judge
from dumpcmp.judge.likeness import (
    AutomaticValueChecker,
    CosineChecker,
    FullValueChecker,
    unseen_by,
)
from dumpcmp.judge.rounding import ReferenceChecker, RoundingChecker
from dumpcmp.nouns.row import ReferenceErrors

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
    "checker_named",
    "judge",
    "unseen_by",
]
