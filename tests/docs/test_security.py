"""SECURITY.md links each promise to the test that holds it: the tests are there, and have tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
PROMISES = [line for line in PAGE.splitlines() if line.startswith("- ")]
LINKS = sorted(set(re.findall(r"\]\((tests/[^)#]+)\)", PAGE)))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line[2:40])
def test_each_promise_names_a_test(promise: str) -> None:
    assert "](tests/" in promise


@pytest.mark.parametrize("link", LINKS)
def test_each_test_that_is_named_is_there(link: str) -> None:
    assert re.search(r"^(?:    )?def test_", (ROOT / link).read_text(), re.MULTILINE)


def test_the_table_that_is_named_is_there() -> None:
    assert "## Budgets of readers" in (ROOT / "docs" / "design" / "reliability.md").read_text()
