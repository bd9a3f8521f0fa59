"""Laws of the table: whatever its annotations allow is right, in two parts and in three."""

from typing import Any

import pytest
import torch

from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning.call import Candidate, OpCall, shape_of
from dumpcmp.partitioning.checking import Settings, check_op
from dumpcmp.partitioning.parts import InProcess
from dumpcmp.partitioning.rules import RULES


def f(*shape: Any) -> Any:
    return shape_of(shape, torch.float32)


def i(*shape: Any) -> Any:
    return shape_of(shape, torch.int64)


def b(*shape: Any) -> Any:
    return shape_of(shape, torch.bool)


def call(fsig: Any, *args: Any, **kwargs: Any) -> Any:
    return OpCall(fsig, args, kwargs)


# A call, and how many different names its annotation lets us split.
CALLS = [
    (call("torch.add", f(6, 8), f(8)), 2),
    (call("torch.mul", f(6, 1, 8), f(3, 1)), 3),
    (call("aten.add_.Tensor", f(6, 8), f(1, 8)), 2),
    (call("torch.div", f(6, 8), f(6, 8)), 2),
    (call("torch.sqrt", f(6, 8)), 2),
    (call("torch.acos", f(6, 8)), 2),
    (call("aten.pow.Tensor_Scalar", f(6, 8), 2), 2),
    (call("aten.pow.Tensor_Tensor", f(6, 8), f(6, 8)), 2),
    (call("torch.nn.functional.gelu", f(6, 8)), 2),
    (call("torch.nn.functional.silu", f(6, 8), inplace=True), 2),
    (call("torch.where", b(6, 1), f(6, 8), f(8)), 2),
    (call("aten.masked_fill.Scalar", f(6, 8), b(8), -1.0), 2),
    (call("aten._to_copy.default", f(6, 8), dtype=torch.bfloat16), 2),
    (call("torch.nn.functional.mse_loss", f(6, 8), f(6, 8)), 0),
    (call("torch.nn.functional.mse_loss", f(6, 8), f(6, 8), reduction="sum"), 2),
    (call("torch.matmul", f(6, 8), f(8, 4)), 3),
    (call("torch.matmul", f(3, 4, 6, 8), f(4, 8, 5)), 5),
    (call("torch.matmul", f(8), f(3, 8, 5)), 3),
    (call("torch.mm", f(6, 8), f(8, 4)), 3),
    (call("torch.bmm", f(3, 6, 8), f(3, 8, 4)), 4),
    (call("torch.addmm", f(4), f(6, 8), f(8, 4)), 2),
    (call("torch.baddbmm", f(3, 6, 4), f(3, 6, 8), f(3, 8, 4)), 3),
    (call("torch.nn.functional.linear", f(3, 6, 8), f(4, 8)), 4),
    (call("torch.nn.functional.linear", f(3, 6, 8), f(4, 8), f(4)), 3),
    (call("torch.einsum", "bhid,bhjd->bhij", [f(3, 4, 6, 8), f(3, 4, 5, 8)]), 5),
    (call("torch.einsum", "ij,jk", [f(3, 4), f(4, 5)]), 3),
    (call("torch.nn.functional.embedding", i(3, 6), f(10, 4)), 3),
    (call("aten.embedding.default", f(10, 4), i(3, 6)), 3),
    (
        call(
            "aten.scaled_dot_product_attention.default", f(3, 4, 6, 8), f(3, 4, 5, 8), f(3, 4, 5, 8)
        ),
        4,
    ),
    (
        call(
            "aten.scaled_dot_product_attention.default",
            f(3, 4, 6, 8),
            f(3, 2, 6, 8),
            f(3, 2, 6, 8),
            is_causal=True,
            enable_gqa=True,
        ),
        3,
    ),
    (
        call(
            "torch.nn.functional.scaled_dot_product_attention",
            f(3, 4, 6, 8),
            f(3, 4, 5, 8),
            f(3, 4, 5, 8),
            b(3, 1, 6, 5),
        ),
        4,
    ),
    (call("torch.conv1d", f(3, 8, 10), f(6, 8, 3)), 3),
    (call("torch.conv2d", f(3, 8, 7, 7), f(6, 8, 3, 3), f(6)), 2),
    (call("torch.conv2d", f(3, 8, 7, 7), f(8, 2, 3, 3), f(8), groups=4), 2),
    (call("torch.conv3d", f(3, 8, 5, 5, 5), f(6, 8, 3, 3, 3), padding=1), 3),
    (call("torch.conv_transpose1d", f(3, 8, 10), f(8, 6, 3), f(6)), 2),
    (call("torch.conv_transpose2d", f(3, 8, 7, 7), f(8, 6, 3, 3), groups=4), 2),
    (call("torch.conv_transpose2d", f(3, 8, 7, 7), f(8, 6, 3, 3), f(24), groups=4), 2),
    (call("torch.conv_transpose3d", f(3, 4, 5, 5, 5), f(4, 6, 3, 3, 3)), 3),
    (
        call(
            "aten.convolution.default",
            f(3, 8, 7, 7),
            f(6, 8, 3, 3),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        ),
        3,
    ),
    (call("torch.nn.functional.max_pool2d", f(3, 4, 6, 6), 2), 2),
    (call("torch.nn.functional.adaptive_avg_pool2d", f(3, 4, 6, 6), 1), 2),
    (call("torch.nn.functional.layer_norm", f(3, 6, 8), (8,), f(8), f(8)), 2),
    (call("aten.native_layer_norm.default", f(3, 6, 8), [8], f(8), f(8), 1e-5), 2),
    (call("torch.nn.functional.rms_norm", f(3, 6, 8), (8,), f(8)), 2),
    (call("torch.nn.functional.group_norm", f(3, 8, 5), 4, f(8), f(8)), 2),
    (call("torch.nn.functional.batch_norm", f(6, 8, 5), f(8), f(8)), 2),
    (
        call(
            "aten.batch_norm.default", f(6, 8, 5, 5), f(8), f(8), f(8), f(8), True, 0.1, 1e-5, False
        ),
        2,
    ),
    (
        call(
            "aten._native_batch_norm_legit_functional.default",
            f(6, 8, 5),
            f(8),
            f(8),
            f(8),
            f(8),
            True,
            0.1,
            1e-5,
        ),
        2,
    ),
    (
        call(
            "aten._native_batch_norm_legit_no_training.default",
            f(6, 8, 5),
            f(8),
            f(8),
            f(8),
            f(8),
            0.1,
            1e-5,
        ),
        2,
    ),
    (call("torch.nn.functional.instance_norm", f(6, 8, 5), f(8), f(8), f(8), f(8)), 2),
    (call("torch.softmax", f(6, 8), dim=-1), 1),
    (call("aten._log_softmax.default", f(6, 8), 0, False), 1),
    (call("torch.nn.functional.cross_entropy", f(6, 8), i(6), reduction="sum"), 1),
    (call("torch.nn.functional.cross_entropy", f(6, 8, 4), i(6, 4), reduction="none"), 2),
    (call("torch.nn.functional.cross_entropy", f(6, 8), i(6), f(8)), 0),
    (call("aten.nll_loss_forward.default", f(6, 8), i(6), None, 2, -100), 1),
    (call("torch.nn.functional.dropout", f(6, 8), 0.5, False), 2),
    (call("torch.sum", f(6, 8), dim=1), 2),
    (call("torch.mean", f(6, 8), dim=1, keepdim=True), 1),
    (call("torch.amax", f(6, 8), dim=(0,)), 1),
    (call("torch.max", f(6, 8), dim=1), 1),
    (call("torch.max", f(6, 8), f(8)), 2),
    (call("torch.var", f(6, 8)), 0),
    (call("torch.argmax", f(6, 8), dim=0), 1),
    (call("torch.topk", f(6, 8), 3), 1),
    (call("torch.cumsum", f(6, 8), dim=1), 1),
    (call("torch.Tensor.view", f(6, 4, 5), size=(6, 20)), 2),
    (call("torch.Tensor.view", f(6, 20), size=(6, 4, 5)), 2),
    (call("torch.Tensor.view", f(6, 20), size=(-1, 4, 5)), 2),
    (call("torch.reshape", f(6, 4), shape=(3, 8)), 0),
    (call("torch.Tensor.view", f(4, 6), 24), 1),
    (call("torch.flatten", f(3, 4, 5), 1), 2),
    (call("torch.unflatten", f(3, 20), 1, (4, 5)), 2),
    (call("torch.permute", f(3, 4, 5), (2, 0, 1)), 3),
    (call("torch.transpose", f(3, 4, 5), 0, -1), 3),
    (call("torch.t", f(3, 4)), 2),
    (call("torch.Tensor.expand", f(3, 1), (3, 6)), 2),
    (call("torch.Tensor.expand", f(3, 1), (4, -1, 6)), 3),
    (call("torch.unsqueeze", f(3, 4), -1), 2),
    (call("torch.squeeze", f(3, 1, 4)), 0),
    (call("torch.squeeze", f(3, 1, 4), 1), 2),
    (call("torch.cat", [f(3, 4), f(3, 5)], dim=1), 1),
    (call("torch.stack", [f(3, 4), f(3, 4)], dim=1), 2),
    (call("torch.split", f(6, 8), 3, dim=1), 1),
    (call("torch.chunk", f(6, 8), 2, dim=0), 1),
    (call("torch.unbind", f(3, 8)), 1),
    (call("aten.slice.Tensor", f(6, 8), 1, 2, 5), 1),
    (call("aten.slice.Tensor", f(6, 8), 0, 0, 9223372036854775807), 2),
    (call("aten.select.int", f(6, 8), 1, -1), 1),
    (call("torch.flip", f(6, 8), [0]), 1),
    (call("torch.roll", f(6, 8), 2, 1), 1),
    (call("torch.tril", f(3, 6, 6)), 1),
    (call("torch.diff", f(6, 8), prepend=f(6, 1)), 1),
    (call("aten.constant_pad_nd.default", f(6, 8), [1, 1]), 1),
    (call("torch.Tensor.repeat", f(6, 8), [2, 1, 3]), 1),
    (call("torch.repeat_interleave", f(6, 8), 2, dim=0), 2),
    (call("torch.gather", f(6, 8), 1, i(6, 4)), 1),
    (call("torch.scatter", f(6, 8), 1, i(6, 4), f(6, 4)), 1),
    (call("torch.index_select", f(6, 8), 0, i(4)), 2),
    (call("aten.index.Tensor", f(6, 8, 5), [None, i(4)]), 3),
    (call("aten.index.Tensor", f(6, 8), [i(3, 1), i(4)]), 2),
    (call("torch.nn.functional.one_hot", i(6), 8), 1),
    (call("aten.slice_scatter.default", f(6, 8), f(6, 3), 1, 2, 5), 1),
    (call("aten.new_zeros.default", f(6, 8), [4, 5]), 2),
]


@pytest.mark.parametrize("num", [2, 3])
@pytest.mark.parametrize("given, names", CALLS, ids=[str(c) for c, _ in CALLS])
def test_all_that_the_table_allows_is_right(given: Any, names: Any, num: Any) -> None:
    single, *parts = check_op(Candidate(given), InProcess(), Settings(num=num))
    assert single.verdict is Verdict.PASS, single
    assert [str(row) for row in parts if row.verdict is not Verdict.PASS] == []
    assert len(parts) == names or num > 2, single.annotation


NO_RULE = [
    call("torch.einsum", "...i,ij->...j", [f(3, 4), f(4, 5)]),
    call("torch.einsum", "ii->i", [f(4, 4)]),
    call("aten.index.Tensor", f(6, 8), [b(6)]),
    call("torch.linalg.inv", f(4, 4)),
]


@pytest.mark.parametrize("given", NO_RULE, ids=str)
def test_what_the_table_does_not_know_is_skipped_by_name(given: Any) -> None:
    (row,) = check_op(Candidate(given), InProcess(), Settings())
    assert row.verdict is Verdict.SKIPPED
    assert row.reason


def test_the_table_is_wide() -> None:
    asked = (
        "matmul linear bmm addmm layer_norm rms_norm batch_norm instance_norm group_norm softmax"
    )
    asked += " scaled_dot_product_attention conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    asked += " conv_transpose3d embedding add sum view reshape permute transpose cat split stack"
    asked += " slice gather where expand cross_entropy dropout gelu silu einsum"
    assert [name for name in asked.split() if name not in RULES] == []
