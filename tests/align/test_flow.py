"""Pairing by data flow: the same doing to the same values, under whatever name and number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.align.flow import Flow
from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Verdict

Forward = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """A module whose forward is given to it."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 24), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def compared(room: Path, golden: Forward, target: Forward, backward: bool = False) -> Outcome:
    for name, forward in (("golden", golden), ("target", target)):
        model, x = Net(forward), torch.linspace(-1, 1, 48).reshape(2, 3, 8).requires_grad_()
        with dumpcmp.capture(model, room / name, backward=backward):
            out = model(x)
            if backward:
                (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
    return dumpcmp.compare(room / "golden", room / "target")


def unpacked(net: Net, x: Tensor) -> Any:
    q, k, v = net.one(x).view(2, 3, 3, 8).unbind(2)
    return net.two(torch.softmax(q @ k.mT, -1) @ v)


def indexed(net: Net, x: Tensor) -> Any:
    parts = net.one(x).reshape(2, 3, 3, 8)
    v, k, q = parts[:, :, 2], parts[:, :, 1], parts[:, :, 0]
    return net.two(torch.softmax(q @ k.transpose(-2, -1), -1) @ v)


def chunked(net: Net, x: Tensor) -> Any:
    q, k, v = net.one(x).chunk(3, -1)
    return net.two(torch.softmax(q @ k.mT, -1) @ v)


def written_out(net: Net, x: Tensor) -> Any:
    gate = net.two(x)
    kept = gate * gate.sigmoid()
    normed = kept * torch.rsqrt(kept.pow(2).mean(-1, keepdim=True) + 1e-6) * net.scale
    return torch.add(normed, x).contiguous().clone()


def fused(net: Net, x: Tensor) -> Any:
    return F.rms_norm(F.silu(net.two(x)), (8,), net.scale, 1e-6) + x


def by_hand(net: Net, x: Tensor) -> Any:
    out = torch.matmul(x, net.two.weight.T) + net.two.bias
    return torch.tanh(out.to(torch.float32).type_as(x))


def by_linear(net: Net, x: Tensor) -> Any:
    return torch.tanh(F.linear(x, net.two.weight, net.two.bias))


def renumbered(net: Net, x: Tensor) -> Any:
    _ = x * 3.0
    return net.two(x * 2.0) + torch.cos(x)


def reordered(net: Net, x: Tensor) -> Any:
    cos = torch.cos(x)
    return net.two(x * 2.0) + cos


SOUND = [(unpacked, indexed), (unpacked, chunked), (indexed, chunked), (written_out, fused),
         (by_hand, by_linear), (renumbered, reordered)]  # fmt: skip


@pytest.mark.each_value_once
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("one, other", SOUND)
def test_two_ways_to_write_the_same_are_the_same(
    one: Forward, other: Forward, backward: bool, tmp_path: Path
) -> None:
    for golden, target in ((one, other), (other, one)):
        outcome = compared(tmp_path / golden.__name__, golden, target, backward)
        assert outcome.passed, outcome.text()
        assert not {v for v in outcome.tally.counts if v.fails}


def swapped(net: Net, x: Tensor) -> Any:
    q, v, k = net.one(x).chunk(3, -1)
    return net.two(torch.softmax(q @ k.mT, -1) @ v)


def off_by_one(net: Net, x: Tensor) -> Any:
    parts = net.one(x).reshape(2, 3, 3, 8)
    v, k, q = parts[:, :, 2], parts[:, :, 1].roll(1, 1), parts[:, :, 0]
    return net.two(torch.softmax(q @ k.transpose(-2, -1), -1) @ v)


def other_epsilon(net: Net, x: Tensor) -> Any:
    return F.rms_norm(F.silu(net.two(x)), (8,), net.scale, 1e-2) + x


def other_scale(net: Net, x: Tensor) -> Any:
    return net.two(x * 2.01) + torch.cos(x)


FAULTY = [(unpacked, swapped), (unpacked, off_by_one), (written_out, other_epsilon),
          (renumbered, other_scale)]  # fmt: skip


@pytest.mark.parametrize("golden, target", FAULTY)
def test_a_fault_behind_another_way_of_writing_is_found(
    golden: Forward, target: Forward, tmp_path: Path
) -> None:
    outcome = compared(tmp_path, golden, target)
    assert outcome.exit_code == 1 and outcome.first_divergence is not None
    assert any(row.verdict is Verdict.FAIL and row.key.op == "<root>" for row in outcome.rows)


def test_what_is_on_one_side_only_is_covered_dead_or_open(tmp_path: Path) -> None:
    outcome = compared(tmp_path / "a", renumbered, reordered)
    dead = {row.key.op for row in outcome.rows if row.verdict is Verdict.DEAD}
    assert dead == {"<root>/mul"}
    outcome = compared(tmp_path / "b", fused, written_out)
    covered = {row.key.op for row in outcome.rows if row.verdict is Verdict.COVERED}
    assert "<root>/rsqrt" in covered and any("on one side only" in r for r in outcome.remarks)
    outcome = compared(tmp_path / "c", written_out, other_epsilon)
    assert Counter(row.verdict for row in outcome.rows)[Verdict.UNPAIRED]


def void(net: Net, x: Tensor) -> Any:
    room = torch.empty_like(x)
    room[..., ::2] = x[..., ::2].sin()
    room[..., 1::2] = x[..., 1::2].cos()
    return net.two(room)


def test_memory_that_nobody_has_written_is_not_compared(tmp_path: Path) -> None:
    outcome = compared(tmp_path, void, void)
    skipped = [row for row in outcome.rows if row.verdict is Verdict.SKIPPED]
    assert "<root>/empty_like" in {row.key.op for row in skipped}
    assert outcome.passed


def seen_twice(net: Net, x: Tensor) -> Any:
    y = net.two(x)
    turned = torch.cos(y.permute(2, 0, 1))
    return turned.sum() + (y.view(6, 8).t() * 3.0).sum(0)


def seen_twice_later(net: Net, x: Tensor) -> Any:
    return seen_twice(net, torch.tanh(x) * 0.0 + x)


def test_views_that_lie_alike_are_told_apart_by_their_shapes(tmp_path: Path) -> None:
    outcome = compared(tmp_path, seen_twice, seen_twice_later)
    assert outcome.passed, outcome.text()
    alone = {row.key.op.function for row in outcome.rows if row.golden_key is None}
    assert alone <= {"tanh", "mul", "add"}
    assert all(row.target_key is not None for row in outcome.rows), outcome.text()


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("is_everywhere", [False, True])
def test_a_value_is_an_earlier_one_where_it_is_that_on_every_rank(
    is_linked: bool, is_everywhere: bool
) -> None:
    ids, labels = (Key("Net", 0, ROOT, 0, f"input.{n}") for n in (0, 1))
    given = [Record(ids, 0, "int64", (4,), rank=rank, digest=f"ids{rank}") for rank in (0, 1)]
    wanted = [replace(one, key=labels, same_as=ids if is_linked else None) for one in given]
    if not is_everywhere:
        wanted[1] = replace(wanted[1], same_as=None, digest="labels")
    flow = Flow.of(Listing({ids: tuple(given), labels: tuple(wanted)}, num_ranks=2))
    assert (flow.strand(ids) == flow.strand(labels)) is is_everywhere


@torch.library.custom_op("dumpcmp_tests::squashed", mutates_args=())
def squashed(x: Tensor) -> Tensor:
    return torch.tanh(x)


@squashed.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def by_function(net: Net, x: Tensor) -> Any:
    return net.two(torch.tanh(x @ net.two.weight))


def by_custom_op(net: Net, x: Tensor) -> Any:
    return net.two(1.01 * squashed(x @ net.two.weight))


def test_two_values_stand_beside_each_other_once(tmp_path: Path) -> None:
    rows = compared(tmp_path, by_function, by_custom_op).rows
    pairs = Counter((row.golden_key, row.target_key) for row in rows)
    assert [pair for pair, number in pairs.items() if number > 1] == []
