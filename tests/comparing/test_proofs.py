"""What two programs compute in float64 decides, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

import dumpcmp
from tests.choosing_cases import every_other
from tests.shadows.programs import SOUND, WRONG, Case, dumped, in_a_dict, last_row

RETURNED = (last_row, in_a_dict)  # which return something else, or under another name
SOUND_CASES = [case for case in SOUND if case.target not in RETURNED]


@pytest.mark.parametrize("case", every_other(SOUND_CASES), ids=str)
def test_two_ways_to_write_a_program_are_the_same(tmp_path: Path, case: Case) -> None:
    golden = dumped(case.golden, tmp_path / "d1", "eager", case.dtype)
    target = dumped(case.target, tmp_path / "d2", "eager", case.dtype)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == 0, outcome


@pytest.mark.parametrize("case", every_other(WRONG), ids=str)
def test_another_program_is_named_at_the_op_where_they_part(tmp_path: Path, case: Case) -> None:
    golden = dumped(case.golden, tmp_path / "d1", "eager", case.dtype)
    target = dumped(case.target, tmp_path / "d2", "eager", case.dtype)
    outcome = dumpcmp.compare(golden, target)
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None, outcome
    assert first.key.op.function in case.places | {"getitem"}  # which reads what is not written
