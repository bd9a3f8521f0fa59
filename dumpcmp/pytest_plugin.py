"""The pytest plugin: `dumpcmp_verify` and `dumpcmp_golden`, whose failures read as a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dumpcmp.golden import GoldenCheck
    from dumpcmp.verifying import Report


@pytest.fixture
def dumpcmp_verify() -> Callable[..., Report]:
    """`dumpcmp.verify`, except that a difference fails the test with the report alone."""

    def verify(*args: Any, **kwargs: Any) -> Report:
        __tracebackhide__ = True
        from dumpcmp.nouns.errors import VerificationError
        from dumpcmp.verifying import verify

        try:
            return verify(*args, **kwargs)
        except VerificationError as error:
            said = str(error)
        pytest.fail(said, pytrace=False)  # out here, so that it is not shown as a second error

    return verify


@pytest.fixture
def dumpcmp_golden() -> Callable[..., GoldenCheck]:
    """`dumpcmp.check_golden`, except that a difference fails the test with the report alone."""

    def check(*args: Any, **kwargs: Any) -> GoldenCheck:
        __tracebackhide__ = True
        from dumpcmp.golden import check_golden

        checked = check_golden(*args, **kwargs)
        if not checked.outcome.passed:
            pytest.fail(checked.outcome.message(), pytrace=False)
        return checked

    return check
