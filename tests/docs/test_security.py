"""SECURITY.md links each promise to the test that holds it: the tests are there, and have tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
PROMISES = [line for line in PAGE.splitlines() if line.startswith("- ")]
NAMED = sorted(set(re.findall(r"\[`(tests/[^`:]+)::([^`]+)`\]\(([^)]+)\)", PAGE)))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line[2:40])
def test_each_promise_names_a_test(promise: str) -> None:
    assert "[`tests/" in promise


def test_every_link_to_a_test_names_its_function() -> None:
    linked = re.findall(r"\]\(tests/", PAGE)
    assert len(linked) == len(re.findall(r"`\]\(tests/", PAGE)) >= len(NAMED) > 0


@pytest.mark.parametrize(("file", "function", "link"), NAMED)
def test_each_test_that_is_named_is_there(file: str, function: str, link: str) -> None:
    assert link == file
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_the_table_that_is_named_is_there() -> None:
    assert "## Budgets of readers" in (ROOT / "docs" / "design" / "reliability.md").read_text()
