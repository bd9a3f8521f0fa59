"""Five laws of a comparison, on programs at random.

1. SAME is never said of a pair with a fault that reaches an effect.
2. WRONG and DIFFERENT are never said of a pair that is only rewritten.
3. Swapping the paths swaps the sides, and nothing else.
4. A lost record never makes a wrong pair SAME (sound ones that become DIFFERENT are counted).
5. All modes of capture, and two ranks, give the same answer.

``DUMPCMP_LAWS=1000 pytest -m "" tests/laws`` is the long version. ``python -m tests.laws 1000``
counts what became of so many.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

import dumpcmp
from tests.laws.drawing import Plan, drawn, exact, how_far, rewritten, with_fault
from tests.laws.ending_pieces import ENDS
from tests.laws.on_ranks import on_ranks
from tests.laws.pieces import PIECES
from tests.laws.trials import DIFFERENT, SAME, Findings, dumped, hold, hold_modes
from tests.taps.distributed.launching import forked

PROGRAMS = int(os.environ.get("DUMPCMP_LAWS", "4"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
IS_LONG = "DUMPCMP_LAWS" in os.environ
SHARES = {"aten": 10, "fx": 16}  # one program in so many
MOST = 5 if IS_LONG else 2  # pieces of a program


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_no_law_is_broken(tmp_path: Path) -> None:
    total = Findings()
    for found in hold(range(SEED, SEED + PROGRAMS), tmp_path, MOST):
        total += found
    print(total)
    assert not total.violations, str(total)
    assert total.counts["programs"] == PROGRAMS


@pytest.mark.parametrize("mode", SHARES)
def test_all_modes_give_the_same_answer(mode: str, tmp_path: Path) -> None:
    total = Findings()
    for found in hold_modes(range(SEED, SEED + PROGRAMS, SHARES[mode]), mode, tmp_path, MOST):
        total += found
    assert not total.violations, str(total)


def test_two_ranks_give_the_same_answer(tmp_path: Path) -> None:
    seeds = range(SEED, SEED + max(4, PROGRAMS // 20) if IS_LONG else 2)
    forked(2, "tests.laws.on_ranks", str(tmp_path), *map(str, seeds))
    for seed in seeds:
        golden = dumped(on_ranks(seed), tmp_path / f"golden-{seed}")
        for name, forbidden in (("sound", DIFFERENT), ("wrong", SAME)):
            target = tmp_path / f"{name}-{seed}"
            if target.exists():
                for pair in ((golden, target), (target, golden)):
                    outcome = dumpcmp.compare(*pair)
                    assert outcome.exit_code != forbidden, f"seed {seed}, {name}: {outcome.word}"


def test_compiled_runs_give_the_same_answer(tmp_path: Path) -> None:
    """One compilation; what is eager is rewritten, or has a fault."""
    draws = random.Random(SEED)
    plan = Plan(
        SEED, ("Norm", "Gated", "Residual"), ((0,), (1,), (2, 0)), ("plain", "plain", "plain"),
        (0, 1, 2), "Scores", "plain", (4,), torch.float32, trains=False,
    )  # fmt: skip
    golden = dumped(plan, tmp_path / "golden", "compiled")
    for number in range(4 if IS_LONG else 2):
        other = rewritten(plan, draws)
        outcome = dumpcmp.compare(golden, dumped(other, tmp_path / f"sound-{number}"))
        assert outcome.exit_code != DIFFERENT, f"{other}: {outcome.word}"
        planted = with_fault(other, draws)
        if planted.question == "program" and how_far(exact(planted.plan), exact(plan)) > 1e-3:
            outcome = dumpcmp.compare(golden, dumped(planted.plan, tmp_path / f"wrong-{number}"))
            assert outcome.exit_code != SAME, f"{planted.plan}: {outcome.word}"


def test_every_piece_comes_up() -> None:
    plans = [drawn(seed) for seed in range(400)]
    assert {kind for plan in plans for kind in plan.kinds} == set(PIECES)
    assert {plan.end for plan in plans} == set(ENDS)
