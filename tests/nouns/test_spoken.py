"""Counts agree with their words: one row, several rows."""

from __future__ import annotations

import pytest

from dumpcmp.nouns.spoken import counted, plural


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 rows fail"), (1, "1 row fails"), (2, "2 rows fail")]
)
def test_a_count_is_told_with_the_form_that_fits_it(count: int, said: str) -> None:
    assert counted(count, "row fails", "rows fail") == said
    assert f"{counted(count, 'row')} {plural(count, 'fails', 'fail')}" == said
