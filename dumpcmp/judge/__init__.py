"""Turns Metrics into a Verdict: what numbers are admissible for which dtypes, and how deep."""

from dumpcmp.judge.catalogue import checker_named
from dumpcmp.judge.checkers import AllCloseValueChecker, ExactChecker, Fp64Checker
from dumpcmp.judge.conditions import INEXACT, Checker, Conditions, Evidence, judge
from dumpcmp.judge.likeness import (
    AutomaticValueChecker,
    CosineChecker,
    FullValueChecker,
    unseen_by,
)
from dumpcmp.judge.rounding import ReferenceChecker, RoundingChecker
from dumpcmp.judge.rules import judge_all
from dumpcmp.nouns.row import ReferenceErrors

__all__ = [
    "INEXACT",
    "AllCloseValueChecker",
    "AutomaticValueChecker",
    "Checker",
    "Conditions",
    "CosineChecker",
    "Evidence",
    "ExactChecker",
    "Fp64Checker",
    "FullValueChecker",
    "ReferenceChecker",
    "ReferenceErrors",
    "RoundingChecker",
    "checker_named",
    "judge",
    "judge_all",
    "unseen_by",
]
