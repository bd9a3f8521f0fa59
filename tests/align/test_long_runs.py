"""Pairing of long runs: the time grows as they do, and nothing slips where calls are missing."""

from __future__ import annotations

import random
import time

import pytest

from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import pair_values
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.row import Pair

FUNCTIONS = ("mul", "add", "linear", "softmax", "gelu", "cat")


def chain(length: int, *, flat: bool, kept: float = 1.0, seed: int = 0) -> Listing:
    """A run of calls one after another; digests name the call, and a share of them is left out.

    The name of a call that is left out does not appear, so that later ones have other numbers.
    """
    ops, dropped = random.Random(0), random.Random(seed)
    values: dict[Key, tuple[Record, ...]] = {}
    calls = {}
    numbers: dict[Op, int] = {}
    before = Key("M", 0, "<root>", 0, "input.0")
    values[before] = (Record(before, 0, "float32", (2, 4), digest="given"),)
    for order in range(1, length):
        function = ops.choice(FUNCTIONS)
        if dropped.random() > kept:
            continue
        op = Op(f"{'<root>' if flat else f'layers.{order // 40}'}/{function}")
        number = numbers[op] = numbers.get(op, -1) + 1
        taken, given = (Key("M", 0, op, number, slot) for slot in ("input.0", "output.0"))
        values[taken] = (Record(taken, order, "float32", (2, 4), same_as=before),)
        values[given] = (Record(given, order, "float32", (2, 4), digest=f"{seed} {order}"),)
        calls[given.site] = Call("M", 0, op, number, order, source=f"model.py:{order % 300}")
        before = given
    return Listing(values, calls)


def right(pairs: list[Pair], golden: Listing, target: Listing) -> tuple[int, int]:
    """How many outputs of calls are paired, and how many of those rightly."""
    both = [(p.golden, p.target) for p in pairs if p.golden and p.target]
    made = [(one, other) for one, other in both if one.slot.is_output and other.slot.is_output]
    same = [golden.record(one).order == target.record(other).order for one, other in made]
    return len(same), sum(same)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_calls_pair_rightly_where_others_are_missing(flat: bool, seed: int) -> None:
    golden = chain(600, flat=flat)
    target = chain(600, flat=flat, kept=0.95, seed=seed + 1)
    num_paired, num_right = right(pair_values(golden, target), golden, target)
    assert num_paired >= 0.97 * (len(target.calls)) and num_right >= 0.97 * num_paired


@pytest.mark.parametrize("flat", [True, False])
def test_the_time_grows_as_the_runs_do(flat: bool) -> None:
    def seconds(length: int) -> float:
        golden = chain(length, flat=flat)
        target = chain(length, flat=flat, kept=0.98, seed=1)
        began = time.process_time()
        pair_values(golden, target)
        return time.process_time() - began

    seconds(200)
    assert seconds(4000) < 3 * 4 * max(seconds(1000), 0.05)  # sixteen times, were it quadratic
