"""Calls that ask for something else are told apart from calls that are only written otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.align.pairing import pair_values
from dumpcmp.comparing.paired_calls import call_differences
from dumpcmp.comparing.side import open_side
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.selection import Tap
from tests.choosing_cases import long

Body = Callable[[Tensor], Any]


class Doing(nn.Module):
    """A model that does one thing."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


def differences(
    golden: Body, target: Body, tmp_path: Path, dtype: str = "float32", **ways: Any
) -> list[CallDifference]:
    """What two models that do `golden` and `target` are found to differ in."""
    x = torch.linspace(0.1, 2, 2 * 4 * 8).view(2, 4, 8)
    for name, body, given in (("g", golden, x), ("t", target, x.to(getattr(torch, dtype)))):
        way = ways if name == "t" else {}
        with dumpcmp.capture(None, tmp_path / name, **way), torch.no_grad():
            Doing(body)(given)
    ours, theirs = (open_side(tmp_path / name, Tap()) for name in "gt")
    pairs = pair_values(ours.listing, theirs.listing)
    return list(call_differences(pairs, ours.listing, theirs.listing).values())


def doubled(x: Tensor, **kwargs: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, **kwargs)


DIFFERENT: list[tuple[Body, Body, str]] = [
    (lambda x: x * 0.17678, lambda x: x * 0.17766,
     "golden multiplies by 0.17678, the target by 0.17766"),
    (lambda x: x + 1e-6, lambda x: x + 1e-4, "golden adds 1e-06, the target 0.0001"),
    (lambda x: x.pow(2), lambda x: x.pow(3),
     "golden raises to the power of 2, the target of 3"),
    (lambda x: F.layer_norm(x, (8,)), lambda x: F.layer_norm(x, (8,), eps=0.01),
     "eps: golden 1e-05, the target 0.01"),
    (F.gelu, lambda x: F.gelu(x, approximate="tanh"),
     "golden calls gelu(approximate='none'), the target gelu(approximate='tanh')"),
    (lambda x: x.softmax(-1), lambda x: x.softmax(1), "dim: golden -1, the target 1"),
    (lambda x: doubled(x, is_causal=True), doubled, "is_causal: golden True, the target False"),
    (lambda x: doubled(x, scale=0.3), doubled, "scale: golden 0.3, the target None"),
    (lambda x: x.to(torch.float64), lambda x: x.to(torch.bfloat16),
     "golden casts to float64, the target to bfloat16"),
    (lambda x: x.mean(-1, keepdim=True), lambda x: x.mean(1, keepdim=True),
     "dim: golden -1, the target 1"),
    (lambda x: x[:, 1:], lambda x: x[:, :3], "index: golden"),
    (lambda x: x[:, 1], lambda x: x[:, 2], "index: golden"),
    (lambda x: x.masked_fill(x > 1, -1e9), lambda x: x.masked_fill(x > 1, -1e4),
     "golden fills with -1e+09, the target with -10000"),
    (lambda x: F.dropout(x, 0.1, training=False), lambda x: F.dropout(x, 0.1),
     "training: golden False, the target True"),
    (lambda x: x.topk(2, largest=True), lambda x: x.topk(2, largest=False),
     "largest: golden True, the target False"),
    (lambda x: x.roll(1, 1), lambda x: x.roll(2, 1), "shifts: golden 1, the target 2"),
    (lambda x: torch.einsum("bij,bkj->bik", x, x), lambda x: torch.einsum("bij,bkj->bki", x, x),
     "golden calls einsum(equation='bij,bkj->bik')"),
    (lambda x: torch.arange(8) + x, lambda x: torch.arange(1, 9) + x,
     "end: golden 8, the target 9; start: golden 0, the target 1"),
    (lambda x: x.tril(), lambda x: x.tril(1), "diagonal: golden 0, the target 1"),
    (lambda x: F.avg_pool2d(x, 3, 1, 1),
     lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
     "count_include_pad: golden True, the target False"),
    (lambda x: F.linear(x, x[0], x[0, :, 0]), lambda x: F.linear(x, x[0]),
     "bias: golden a tensor, the target None"),
]  # fmt: skip

SAME: list[Any] = [
    (lambda x: x * 0.5, lambda x: torch.mul(0.5, x)),
    long(lambda x: x.clone().mul_(0.5), lambda x: torch.mul(x.clone(), 0.5)),
    (lambda x: x * 0.1, lambda x: x * (0.1 + 1e-12)),
    (lambda x: x.pow(2), lambda x: x**2.0),
    (lambda x: F.gelu(x, approximate="none"), F.gelu),
    (lambda x: F.softmax(x, dim=-1), lambda x: x.softmax(2)),
    long(lambda x: torch.softmax(x, -1, dtype=torch.float32), lambda x: F.softmax(x, 2)),
    (lambda x: F.layer_norm(x, (8,), None, None, 1e-5), lambda x: torch.layer_norm(x, [8])),
    long(lambda x: x.view(2, -1), lambda x: x.view((2, 32))),
    (lambda x: x.transpose(1, 2), lambda x: x.transpose(-2, -1)),
    long(lambda x: x.permute(0, 2, 1), lambda x: torch.permute(x, (0, -1, -2))),
    (lambda x: x.mean(), lambda x: x.mean((0, 1, 2))),
    long(lambda x: x.sum((0, 1)), lambda x: x.sum([1, 0])),
    (lambda x: x[:, 1:3], lambda x: x[..., 1:-1, :]),
    (lambda x: x[-1], lambda x: x[1, ...]),
    (lambda x: torch.cat([x, x], 2), lambda x: torch.cat((x, x), dim=-1)),
    long(lambda x: torch.stack([x, x], 3), lambda x: torch.stack((x, x), dim=-1)),
    long(lambda x: torch.unsqueeze(x, -1), lambda x: x.unsqueeze(3)),
    (doubled, lambda x: doubled(x, dropout_p=0.0, scale=1 / math.sqrt(8))),
    (lambda x: F.dropout(x, 0.1, False), lambda x: F.dropout(x, 0.5, training=False)),
    (lambda x: x.to("cpu"), lambda x: x.to(torch.device("cpu"), non_blocking=True)),
    (lambda x: x.float(), lambda x: x.to(torch.float32)),
    (lambda x: x.masked_fill(x > 1, torch.finfo(torch.float32).min),
     lambda x: x.masked_fill(x > 1, torch.finfo(torch.bfloat16).min)),
    (lambda x: torch.arange(8) + x, lambda x: torch.arange(0, 8, 1, device="cpu") + x),
    (lambda x: torch.einsum("bij,bkj->bik", x, x), lambda x: torch.einsum("b i d, b j d -> b i j",
                                                                         x, x)),
    long(lambda x: F.relu(x, inplace=False), torch.relu),
    (lambda x: torch.logical_and(x > 1, x < 2), lambda x: (x > 1) & (x < 2)),
    (lambda x: F.max_pool2d(x, 2, 2, 0), lambda x: F.max_pool2d(x, (2, 2), stride=[2, 2])),
    (lambda x: torch.zeros(3, 8) + x[0, :3], lambda x: torch.zeros((3, 8)) + x[0, :3]),
    (lambda x: torch.chunk(x, 2, 1), lambda x: torch.chunk(x, chunks=2, dim=-2)),
    (lambda x: F.scaled_dot_product_attention(x, x, x, enable_gqa=True),
     lambda x: F.scaled_dot_product_attention(x, x, x)),
]  # fmt: skip


@pytest.mark.parametrize("golden, target, said", DIFFERENT, ids=[said for *_, said in DIFFERENT])
def test_what_two_calls_differ_in_is_said(
    golden: Body, target: Body, said: str, tmp_path: Path
) -> None:
    (found,) = differences(golden, target, tmp_path)
    assert found.said.startswith(said)
    assert found.golden != found.target


@pytest.mark.parametrize("golden, target", SAME)
def test_other_spellings_of_a_call_are_the_same(golden: Body, target: Body, tmp_path: Path) -> None:
    assert not differences(golden, target, tmp_path)
    assert not differences(target, golden, tmp_path / "again")


@pytest.mark.parametrize("mode", ["fx", "aten", "compiled"])
def test_a_constant_is_read_off_graphs_and_off_the_dispatcher(mode: str, tmp_path: Path) -> None:
    found = differences(lambda x: x * 0.5 + 1, lambda x: x * 0.6 + 1, tmp_path, mode=mode)
    assert [each.said for each in found] == ["golden multiplies by 0.5, the target by 0.6"]


def test_summaries_are_enough(tmp_path: Path) -> None:
    (found,) = differences(F.gelu, lambda x: F.gelu(x, approximate="tanh"), tmp_path,
                           keep="summary")  # fmt: skip
    assert found.target == "gelu(approximate='tanh')"


def test_each_run_casts_to_its_own_precision(tmp_path: Path) -> None:
    def body(x: Tensor) -> Tensor:
        return x.float().softmax(-1).to(x.dtype)

    assert not differences(body, body, tmp_path, "bfloat16")


def test_arguments_that_cannot_be_read_say_nothing() -> None:
    from dumpcmp.nouns.given import read_arguments

    for text in ("", "{", "[1]", '{"args":1}', '{"args":[{"float":"x"}]}', "null"):
        assert read_arguments(text) is None


def test_a_call_that_differs_for_nothing_is_a_remark(tmp_path: Path) -> None:
    differences(lambda x: x.clamp(-5, 5), lambda x: x.clamp(-6, 5), tmp_path)
    outcome = dumpcmp.compare(tmp_path / "g", tmp_path / "t")
    assert outcome.passed
    assert any("min: golden -5, the target -6; nothing fails" in r for r in outcome.remarks)


def test_a_call_that_differs_is_the_cause_where_the_numbers_do(tmp_path: Path) -> None:
    differences(lambda x: x * 0.5, lambda x: x * 0.6, tmp_path)
    outcome = dumpcmp.compare(tmp_path / "g", tmp_path / "t")
    (root,) = outcome.roots
    assert root.reason.startswith("golden multiplies by 0.5, the target by 0.6")
