"""Holds a compiled model against the framework model, on isolated copies of both."""

from dumpcmp.verifying.backend import VerifyingBackend, verify_correctness, verifying_backend
from dumpcmp.verifying.config import VerifyConfig
from dumpcmp.verifying.report import NEXT, Report
from dumpcmp.verifying.run import report_on, verify

__all__ = [
    "NEXT",
    "Report",
    "VerifyConfig",
    "VerifyingBackend",
    "report_on",
    "verify",
    "verify_correctness",
    "verifying_backend",
]
