"""Grafts of runs on two ranks: rank by rank, and in weights and kernels beside one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import dumpcmp
from dumpcmp.grafting.measuring_roots import EXACT
from tests.shadows import test_ranks

pytestmark = pytest.mark.long  # two processes run first


room = test_ranks.room  # runs on two ranks, with faults


def test_a_call_of_one_rank_is_put_right_beside_the_same_ranks(room: Path) -> None:
    (step,) = dumpcmp.graft_all(room / "eps", room / "split").steps
    assert [(root.op.function, root.rank) for root in step.roots] == [("layer_norm", 1)]
    assert step.roots[0].gone == pytest.approx(1)
    assert step.is_explained


def test_a_weight_of_one_rank_is_put_right_beside_one_process(room: Path) -> None:
    (step,) = dumpcmp.graft_all(room / "stale", room / "golden").steps
    assert [(str(root.op), root.rank) for root in step.roots] == [("norm.weight", 1)]
    assert step.is_explained


def test_what_cannot_be_put_right_on_ranks_is_left_and_told(room: Path) -> None:
    found = dumpcmp.graft_all(room / "eps", room / "golden")
    (step,) = found.steps
    assert found.exit_code == 1
    assert step.left > EXACT
    assert "a further fault" in step.rest
    assert any("different ranks" in remark for remark in step.remarks)
