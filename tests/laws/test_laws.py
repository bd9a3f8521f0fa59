"""Five laws of a comparison, on programs at random.

1. SAME is never said of a pair with a fault that reaches an effect.
2. WRONG and DIFFERENT are never said of a pair that is only rewritten.
3. Swapping the paths swaps the sides, and nothing else.
4. A lost record never makes a wrong pair SAME, nor a sound one DIFFERENT.
5. All modes of capture, and two ranks, give the same answer.

``DUMPCMP_LAWS=1000 pytest -m "" tests/laws`` is the long version. ``python -m tests.laws 1000``
counts what became of so many.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.laws.drawing import drawn
from tests.laws.ending_pieces import ENDS
from tests.laws.pieces import PIECES
from tests.laws.trials import Findings, hold, hold_modes

PROGRAMS = int(os.environ.get("DUMPCMP_LAWS", "24"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
IS_LONG = "DUMPCMP_LAWS" in os.environ
SHARES = {"aten": 8, "fx": 24}  # one program in so many


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_no_law_is_broken(tmp_path: Path) -> None:
    total = Findings()
    for found in hold(range(SEED, SEED + PROGRAMS), tmp_path):
        total += found
    print(total)
    assert not total.violations, str(total)
    assert total.counts["programs"] == PROGRAMS


@pytest.mark.parametrize("mode", SHARES)
def test_all_modes_give_the_same_answer(mode: str, tmp_path: Path) -> None:
    total = Findings()
    for found in hold_modes(range(SEED, SEED + PROGRAMS, SHARES[mode]), mode, tmp_path):
        total += found
    assert not total.violations, str(total)


def test_every_piece_comes_up() -> None:
    plans = [drawn(seed) for seed in range(400)]
    assert {kind for plan in plans for kind in plan.kinds} == set(PIECES)
    assert {plan.end for plan in plans} == set(ENDS)
