"""Partitions that a user writes down: right ones pass, wrong ones fail with a reason."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dumpcmp
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import (
    PartitionConfig,
    PartitionError,
    TensorInfo,
    check_partition_options,
    register_annotation,
    verify_partition_options,
)
from dumpcmp.partitioning.call import call_of
from dumpcmp.partitioning.inputs import wanted_grads
from dumpcmp.partitioning.table import entry_for
from tests.partitioning.cases import BATCHNORM, LARGE, SMALL, WRONG, config


def verdicts(found: Any) -> Any:
    return [row.verdict for row in found.rows]


@pytest.mark.parametrize("name", SMALL)
def test_examples_of_nnscaler_pass(name: Any) -> None:
    found = check_partition_options(SMALL[name])
    assert verdicts(found) == [Verdict.PASS] * (1 + len(SMALL[name].parti_options)), found
    assert verify_partition_options(SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_examples_of_nnscaler_pass(name: Any) -> None:
    found = check_partition_options(LARGE[name])
    assert verdicts(found) == [Verdict.PASS, Verdict.PASS], found


@pytest.mark.parametrize("num", [2, 3, 4, 5])
def test_rows_of_an_embedding_table_can_be_split_evenly_or_not(num: Any) -> None:
    ids = config(
        "nnscaler.runtime.function.embedding", (3, 7), (11, 4),
        options=[{"idx": 1, "dim": 0, "num": num}], padding_idx=2, start=0, stop=11,
    )  # fmt: skip
    assert verdicts(check_partition_options(ids)) == [Verdict.PASS, Verdict.PASS]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_partitions_fail_with_a_reason(name: Any) -> None:
    single, partitioned = check_partition_options(WRONG[name]).rows
    assert single.verdict is Verdict.PASS
    assert partitioned.verdict is Verdict.FAIL
    assert "off the float64 run" in partitioned.reason
    assert partitioned.worst_slot
    assert verify_partition_options(WRONG[name]).exit_code == 1


def test_a_sum_of_outputs_misses_some_of_them() -> None:
    missed = set()
    for name, wrong in WRONG.items():
        row = check_partition_options(wrong).rows[1]
        if math.isclose(row.loss_single, row.loss_multi, rel_tol=1e-3, abs_tol=1e-3):
            missed.add(name)
    assert missed == {
        "batch norm without synchronised statistics",
        "permuted rows",
        "layer norm along the normalised dim",
        "running statistics of instance norm",
    }


@pytest.mark.parametrize("fsig", ["torch.nn.functional.batch_norm", BATCHNORM])
def test_batch_norm_along_n_needs_synchronised_statistics(fsig: Any) -> None:
    shapes = [(8, 4, 5, 5), (4,), (4,), (4,), (4,)] + ([(1,)] if fsig == BATCHNORM else [])
    options = [{"idx": 0, "dim": 0}, {"idx": 0, "dim": 0, "sync": False}, {"idx": 0, "dim": 1}]
    given = config(fsig, *shapes, options=options, training=True)
    assert verdicts(check_partition_options(given)) == ["PASS", "PASS", "FAIL", "PASS"]


def test_uneven_parts_of_a_synchronised_norm_are_the_whole() -> None:
    shapes = [(7, 4, 5, 5), (4,), (4,), (4,), (4,), (1,)]
    given = config(BATCHNORM, *shapes, options=[{"idx": 0, "dim": 0, "num": 3}], training=True)
    assert bool(check_partition_options(given))


def test_random_ops_are_inconclusive() -> None:
    given = config("torch.nn.functional.dropout", (8, 64), options=[(0, 0)], p=0.5, training=True)
    found = check_partition_options(given)
    assert verdicts(found) == [Verdict.INCONCLUSIVE] * 2
    assert "random" in found.rows[1].reason
    assert not found


REFUSED = [
    (config("torch.addmm", (2, 3), (2, 4), (4, 3), options=[(1, 1)]), "'k^'"),
    (config("torch.softmax", (4, 8), options=[(0, 1)], dim=1), "stays whole"),
    (config("torch.relu", (3, 8), options=[{"idx": 0, "dim": 0, "num": 4}]), "3 long"),
    (config("torch.relu", (3, 8), options=[(0, 5)]), "no dim 5"),
    (config("torch.relu", (3, 8), options=[(7, 0)]), "no operand 7"),
    (config("torch.conv2d", (1, 8, 5, 5), (4, 8, 3, 3), (4,), options=[(0, 1)]), "'i^'"),
]


@pytest.mark.parametrize("given, why", REFUSED)
def test_an_option_that_the_annotation_forbids_is_refused(given: Any, why: Any) -> None:
    row = check_partition_options(given).rows[1]
    assert row.verdict is Verdict.REFUSED
    assert why in row.reason
    assert verify_partition_options(given).exit_code == 1


TROUBLE = [
    (config("torch.addmm", (2, 3), (2, 4), (5, 3)), Verdict.ERROR, "RuntimeError"),
    (config("torch.relu", (2, 3), anno="a -> a"), Verdict.ERROR, "2, 3"),
    (config("torch.relu", (2, 4), anno="a b, c -> a b"), Verdict.ERROR, "2 inputs"),
    (config("math.gamma", (2, 4)), Verdict.SKIPPED, "no annotation"),
    (config("torch.max", (2, 4), dim=1), Verdict.ERROR, "2 outputs, noutputs says 1"),
]


@pytest.mark.parametrize("given, verdict, why", TROUBLE)
def test_what_cannot_be_verified_says_why(
    given: Any, verdict: Any, why: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = check_partition_options(given).rows
    assert row.verdict is verdict
    assert why in row.reason
    told = verify_partition_options(given)
    assert not told and told.exit_code == (2 if verdict is Verdict.SKIPPED else 1)
    assert any(why in record.message for record in caplog.records)


def test_a_part_that_raises_fails() -> None:
    given = config("torch.Tensor.view", (4, 6), options=[(0, 1)], anno="a b -> a b", size=(4, -1))
    assert verify_partition_options(given)  # -1 follows the part
    given = config("torch.reshape", (4, 6), options=[(0, 0)], anno="x c -> (x c)", shape=(24,))
    row = check_partition_options(given).rows[1]
    assert (row.verdict, row.worst_slot) == (Verdict.PASS, "output.0")
    given = config(
        "torch.Tensor.unfold", (4, 6), 0, 3, 1, options=[(0, 0)], anno="a b, ?, ?, ? -> a b 3"
    )
    row = check_partition_options(given).rows[-1]
    assert row.verdict in (Verdict.FAIL, Verdict.ERROR)


@pytest.mark.parametrize("call", [verify_partition_options, check_partition_options])
def test_another_configuration_is_refused_by_name(call: Callable[..., object]) -> None:
    with pytest.raises(PartitionError, match=r"by a PartitionConfig, not by .*\.VerifyConfig"):
        call(dumpcmp.VerifyConfig())


def test_an_annotation_can_be_registered() -> None:
    register_annotation("tests.partitioning.functions.scaled", "a b, ? -> a b")
    given = config("tests.partitioning.functions.scaled", (4, 6), 2.0, options=[(0, 0), (0, 1)])
    assert verify_partition_options(given)
    register_annotation("tests.partitioning.functions.centred", "a b -> a b")
    given = config("tests.partitioning.functions.centred", (4, 6), options=[(0, 0), (0, 1)])
    assert verdicts(check_partition_options(given)) == ["PASS", "PASS", "FAIL"]


def test_tensors_may_come_by_value_and_by_keyword() -> None:
    eye = TensorInfo("value", torch.eye(4))
    given = PartitionConfig(
        "torch.nn.functional.linear",
        [TensorInfo("shape", (6, 4)), eye],
        {"bias": TensorInfo("shape", (4,))},
        parti_options=[{"idx": 0, "dim": 0}, {"idx": 2, "dim": 0}],
    )
    assert verify_partition_options(given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_short_and_long_floats_are_judged_by_their_own_rounding(dtype: Any) -> None:
    shapes = [(64, 256), (32, 256)]
    tensors = [TensorInfo("shape", shape, dtype=dtype) for shape in shapes]
    given = PartitionConfig(
        "torch.nn.functional.linear", tensors, parti_options=[{"idx": 0, "dim": 1}]
    )
    assert verify_partition_options(given)


def test_an_op_without_a_derivative_is_verified_forward_only() -> None:
    found = check_partition_options(config("torch.heaviside", (4, 6), (4, 6)))
    assert found.rows[0].verdict is Verdict.PASS
    assert "forward only" in found.rows[0].reason


def test_excluded_gradients_are_not_compared() -> None:
    given = config("torch.mul", (4, 6), (4, 6), options=[(0, 0)])
    for excluded, slots in ([], 2), ([1], 1):
        asked = PartitionConfig(
            given.fsig, given.args, parti_options=given.parti_options, non_grad_indices=excluded
        )
        assert len(wanted_grads(entry_for(call_of(asked)))) == slots
