"""Real ranks: the same verdicts as in process, and crashes that are told, not hidden."""

from typing import Any

import pytest
import torch

from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import PartitionError, check_partition_options, crews
from dumpcmp.partitioning.crews import opened
from tests.partitioning.cases import BATCHNORM, EMBEDDING, SMALL, WRONG, config

PLAIN = "a b -> a b"


@pytest.fixture(scope="module")
def gloo() -> Any:
    with opened("gloo", timeout=120) as ranks:
        yield ranks


@pytest.mark.parametrize("name", SMALL)
def test_examples_of_nnscaler_pass_on_two_ranks(name: Any, gloo: Any) -> None:
    found = check_partition_options(SMALL[name], backend=gloo)
    assert [str(row) for row in found.rows if row.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_partitions_fail_on_two_ranks(name: Any, gloo: Any) -> None:
    single, partitioned = check_partition_options(WRONG[name], backend=gloo).rows
    assert (single.verdict, partitioned.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert "off the float64 run" in partitioned.reason


UNEVEN = [
    config(BATCHNORM, (7, 4, 5, 5), (4,), (4,), (4,), (4,), (1,), options=[(0, 0)], training=True),
    config(EMBEDDING, (3, 7), (11, 4), options=[(1, 0)], padding_idx=None, start=0, stop=11),
    config("torch.nn.functional.linear", (5, 9), (7, 9), options=[(0, 0), (0, 1), (1, 0)]),
]


@pytest.mark.parametrize("given", UNEVEN, ids=lambda c: c.fsig)
def test_uneven_parts_agree_with_those_in_process(given: Any, gloo: Any) -> None:
    here = check_partition_options(given)
    there = check_partition_options(given, backend=gloo)
    assert [row.verdict for row in there.rows] == [row.verdict for row in here.rows]
    assert here and there


FAILURES = [
    ("raises", ["ZeroDivisionError: a part is too small", "functions.py"]),
    ("dies", ["died with exit code 7"]),
]


@pytest.mark.parametrize("name, words", FAILURES)
def test_a_rank_that_fails_is_reported_and_the_next_task_runs(
    name: Any, words: Any, gloo: Any
) -> None:
    fsig = f"tests.partitioning.functions.{name}"
    given = config(fsig, (6, 4), options=[(0, 0), (0, 1)], anno=PLAIN)
    single, failed, later = check_partition_options(given, backend=gloo).rows
    assert (single.verdict, failed.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert all(word in failed.reason for word in words), failed.reason
    assert later.verdict is Verdict.PASS  # a new group of ranks has taken over


def test_a_rank_that_hangs_is_ended_at_the_time_limit() -> None:
    given = config("tests.partitioning.functions.hangs", (6, 4), options=[(0, 0)], anno=PLAIN)
    row = check_partition_options(given, backend="gloo", timeout=2.0).rows[1]
    assert row.verdict is Verdict.FAIL
    assert "did not answer within 2 s" in row.reason


def test_an_interpreter_of_ranks_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_MAIN", "raise ValueError('torch is not here')")
    given = config("torch.relu", (6, 4), options=[(0, 0)])
    row = check_partition_options(given, backend="gloo").rows[1]
    assert row.verdict is Verdict.FAIL
    assert "the ranks' interpreter died with exit code 1" in row.reason
    assert "ValueError: torch is not here" in row.reason


def test_nccl_needs_as_many_gpus_as_parts() -> None:
    given = config("torch.relu", (6, 4), options=[{"idx": 0, "dim": 0, "num": 6}])
    if torch.cuda.device_count() >= 6:
        pytest.skip("this machine has them")
    row = check_partition_options(given, backend="nccl").rows[1]
    assert row.verdict is Verdict.ERROR
    assert "6 NCCL ranks need 6 GPUs" in row.reason


def test_there_are_three_backends() -> None:
    with pytest.raises(PartitionError, match="no backend 'mpi'"):
        check_partition_options(SMALL["addmm"], backend="mpi")
