"""Holds a compiled model against the framework model, on isolated copies of both."""

from dumpcmp.verifying.at_hand import run_and_compare, same
from dumpcmp.verifying.backend import VerifyingBackend, verifying_backend
from dumpcmp.verifying.config import VerifyConfig
from dumpcmp.verifying.everywhere import verify_correctness
from dumpcmp.verifying.report import NEXT, Report
from dumpcmp.verifying.run import report_on, verify

__all__ = [
    "NEXT",
    "Report",
    "VerifyConfig",
    "VerifyingBackend",
    "report_on",
    "run_and_compare",
    "same",
    "verify",
    "verify_correctness",
    "verifying_backend",
]
