"""Rows that travelled are put into golden's order; what they are not is not made up."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.align.mesh.travelled import in_golden_order
from dumpcmp.nouns.value import Value, dtype_named

ROWS = np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)


def _value(bits: NDArray[np.float32]) -> Value:
    return Value(dtype_named("float32"), bits)


def _placed(*shards: NDArray[np.float32]) -> NDArray[np.float32] | None:
    found = in_golden_order(_value(ROWS), [_value(shard) for shard in shards])
    return None if found is None else found.bits.astype(np.float32)


def test_rows_of_all_ranks_come_into_golden_order() -> None:
    order = np.random.default_rng(2).permutation(9)
    moved = ROWS[order] * np.float32(1 + 1e-6)
    placed = _placed(moved[:2], moved[2:])
    assert placed is not None
    np.testing.assert_allclose(placed, ROWS, rtol=1e-5)


def test_a_row_that_is_not_golden_stays_far_from_it() -> None:
    other = ROWS[::-1].copy()
    other[3] = 2 * other[3]
    placed = _placed(other[:4], other[4:])
    assert placed is not None and not np.allclose(placed, ROWS, rtol=1e-2)


@pytest.mark.parametrize(
    "shards",
    [(ROWS[:4],), (ROWS, ROWS + 1), (ROWS[:, :3], ROWS[:, 3:]), (ROWS.T.copy(),)],
    ids=["fewer", "strangers", "columns", "turned"],
)
def test_what_are_not_golden_rows_is_left(shards: tuple[NDArray[np.float32], ...]) -> None:
    assert _placed(*shards) is None


def test_of_more_rows_zeros_and_golden_rows_again_are_left_out() -> None:
    """As where each rank has all tokens, and zeros for experts that others have."""
    first, second = ROWS[::-1].copy(), ROWS[[4, 0, 8, 2, 6, 1, 3, 5, 7]] * np.float32(1 + 1e-6)
    first[4:], second[7:] = 0, 0
    placed = _placed(first, second)
    assert placed is not None
    np.testing.assert_allclose(placed, ROWS, rtol=1e-5)
    second[2, 1] *= 1.01
    wrong = _placed(first, second)
    assert wrong is None or not np.allclose(wrong, ROWS)


def test_single_numbers_resemble_each_other_too_often() -> None:
    line = _value(ROWS.reshape(-1))
    assert in_golden_order(line, [line]) is None


def test_where_golden_has_no_rows_none_are_put_in_order() -> None:
    assert in_golden_order(_value(ROWS[:0]), [_value(ROWS[:2]), _value(ROWS[2:])]) is None
