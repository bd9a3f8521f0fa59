"""The judgement on Metrics: verdicts that come first, the default rule, and the reference."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dumpcmp.judge import (
    AllCloseValueChecker,
    Checker,
    Conditions,
    CosineChecker,
    ExactChecker,
    Fp64Checker,
    ReferenceChecker,
    ReferenceErrors,
    RoundingChecker,
    judge,
)
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.arithmetic import Arithmetic, arithmetic_of, is_reduction
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.value import DTYPES, value_of

ROUNDS, MOVES, COMPOSITE = Arithmetic.ROUNDS, Arithmetic.MOVES, Arithmetic.COMPOSITE


def verdict(
    golden: Tensor, target: Tensor, checker: Checker | None = None, **conditions: object
) -> Verdict:
    ours, theirs = value_of(golden), value_of(target)
    known = Conditions(ours.dtype, theirs.dtype, **conditions)  # type: ignore[arg-type]
    return judge(measure(ours, theirs), known, checker or RoundingChecker()).verdict


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


NAN = math.nan
FIRST = [
    ("empty", torch.zeros(0), torch.zeros(0), Verdict.EMPTY),
    ("equal", torch.ones(3), torch.ones(3), Verdict.PASS),
    ("equal NaN", torch.tensor([NAN, 1]), torch.tensor([NAN, 1]), Verdict.PASS),
    ("NaN on one side", torch.tensor([1.0, 1]), torch.tensor([NAN, 1]), Verdict.NONFINITE),
    ("only NaN", torch.tensor([NAN]), torch.tensor([NAN]), Verdict.INCONCLUSIVE),
    ("of other payload", torch.tensor([NAN]), -torch.tensor([NAN]), Verdict.INCONCLUSIVE),
    ("only infinities", torch.tensor([math.inf]), torch.tensor([math.inf]), Verdict.PASS),
    ("another dtype", torch.ones(3), torch.ones(3).half(), Verdict.DTYPE),
    ("zeros against fives", torch.zeros(3), torch.full((3,), 5.0), Verdict.FAIL),
    ("integers off by one", torch.arange(9), torch.arange(9) + 1, Verdict.FAIL),
    ("one boolean", torch.zeros(9).bool(), torch.ones(9).bool(), Verdict.FAIL),
]


@pytest.mark.parametrize(
    "golden, target, expected", [f[1:] for f in FIRST], ids=[f[0] for f in FIRST]
)
def test_some_verdicts_come_first(golden: Tensor, target: Tensor, expected: Verdict) -> None:
    assert verdict(golden, target) is expected


X = randn(256, 64)
B = X.bfloat16()
# What differs, the two sides, what is known of the op, and the verdict.
RULE = [
    ("float32 noise", X, X * (1 + 1e-6), {}, "PASS"),
    ("float32 beyond noise", X, X * (1 + 1e-5), {}, "FAIL"),
    ("float32 noise, deep", X, X * (1 + 5e-6), {"depth": 24}, "PASS"),
    ("bf16 noise", B, (X * 1.02).bfloat16(), {}, "PASS"),
    ("bf16 beyond noise", B, (X * 1.05).bfloat16(), {}, "FAIL"),
    ("float32 that came through bf16", X, X * 1.02, {"on_the_way": DTYPES["bfloat16"]}, "PASS"),
    ("the same, but on equal inputs", X, X * 1.02,
     {"on_the_way": DTYPES["bfloat16"], "inputs_equal": True, "arithmetic": ROUNDS}, "FAIL"),
    ("equal inputs, bf16 scaled", B, (X * 1.01).bfloat16(),
     {"inputs_equal": True, "arithmetic": ROUNDS}, "FAIL"),
    ("equal inputs, bf16 shrunk a little", B, (X * 0.9995).bfloat16(),
     {"inputs_equal": True, "arithmetic": ROUNDS}, "FAIL"),
    ("equal inputs, bf16 rounded otherwise", B, (X + 1e-3 * randn(64, 256).T).bfloat16(),
     {"inputs_equal": True, "arithmetic": ROUNDS}, "PASS"),
    ("equal inputs, a composite", B, (X * 1.01).bfloat16(),
     {"inputs_equal": True, "arithmetic": COMPOSITE}, "PASS"),
    ("equal inputs, moved", B, B.roll(1, 0), {"inputs_equal": True, "arithmetic": MOVES}, "FAIL"),
    ("equal inputs, one row wrong", X, torch.cat([X[:255], X[:1]]),
     {"inputs_equal": True, "arithmetic": ROUNDS}, "FAIL"),
    ("a sum that all but cancels", X, X * (1 + 1e-4),
     {"inputs_equal": True, "arithmetic": ROUNDS, "cancellation": 100.0}, "PASS"),
    ("float16 subnormals", (X * 1e-6).half(), (X * 1.004e-6).half(),
     {"inputs_equal": True, "arithmetic": ROUNDS, "depth": 300}, "PASS"),
]  # fmt: skip


@pytest.mark.parametrize(
    "golden, target, known, expected", [r[1:] for r in RULE], ids=[r[0] for r in RULE]
)
def test_the_default_rule(
    golden: Tensor, target: Tensor, known: dict[str, Any], expected: str
) -> None:
    assert verdict(golden, target, **known) == expected


def replaced(golden: Tensor, **rows: object) -> Tensor:
    target = golden.clone()
    for name, value in rows.items():
        target[int(name[1:])] = value  # type: ignore[assignment]
    return target


T = randn(4096, 32)
FOUR = replaced(T, r7=randn(32), r99=randn(32) * 2, r1000=-T[1000], r4000=T[1])
SWAPPED = replaced(T, r3=T[900], r900=T[3])
CHANNEL, SIGN, HEADS = T.clone(), T.clone(), T.view(4096, 4, 8).flip(1).reshape(4096, 32)
CHANNEL[:, 5] = 0
SIGN[17, 3] *= -1
RELU = torch.relu(T)
# Blind spots of other tools: what they pass or fail wrongly, and the verdict here.
TRAPS = [
    ("4 of 4096 tokens replaced", T, FOUR, "FAIL"),
    ("two tokens swapped", T, SWAPPED, "FAIL"),
    ("a zeroed channel", T, CHANNEL, "FAIL"),
    ("all of it times 1.04", T, T * 1.04, "FAIL"),
    ("all of it times 1.01", T, T * 1.01, "FAIL"),
    ("rolled by one token", T, T.roll(1, 0), "FAIL"),
    ("one sign of 131072", T, SIGN, "FAIL"),
    ("heads permuted", T, HEADS, "FAIL"),
    ("100 where golden is 0", RELU, torch.where(RELU == 0, 100.0, RELU), "FAIL"),
    ("1e-9 where golden is 0", RELU, torch.where(RELU == 0, 1e-9, RELU), "PASS"),
    ("zeros against fives", torch.zeros(8), torch.full((8,), 5.0), "FAIL"),
    ("NaN in golden, 0 in mine", torch.tensor([NAN, 1]), torch.tensor([0.0, 1]), "NONFINITE"),
    ("equal NaN", torch.tensor([NAN, 1]), torch.tensor([NAN, 1]), "PASS"),
    ("100000 against 100001", torch.tensor([100000]), torch.tensor([100001]), "FAIL"),
    ("uint8 constants", torch.ones(8).byte(), torch.full((8,), 7).byte(), "FAIL"),
    ("bf16 of float32", T, T.bfloat16(), "DTYPE"),
    ("2x + 5", T, 2 * T + 5, "FAIL"),
    ("no elements", torch.zeros(0, 3), torch.zeros(0, 3), "EMPTY"),
]


@pytest.mark.parametrize(
    "golden, target, expected", [x[1:] for x in TRAPS], ids=[x[0] for x in TRAPS]
)
def test_the_traps_of_others(golden: Tensor, target: Tensor, expected: str) -> None:
    assert verdict(golden, target) == expected


@pytest.mark.parametrize("depth", [0, 3, 15])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_limit_grows_with_the_root_of_the_depth(depth: int, dtype: str) -> None:
    conditions = Conditions(DTYPES[dtype], DTYPES[dtype], depth)
    flat = replace(conditions, depth=0)
    rule = RoundingChecker()
    assert rule.limit(conditions) == pytest.approx(rule.limit(flat) * math.sqrt(depth + 1))


def test_explicit_checkers_say_what_they_are_asked() -> None:
    scaled = X * 1.5
    assert verdict(X, scaled, CosineChecker()) == "PASS"
    assert verdict(X, scaled, AllCloseValueChecker()) == "FAIL"
    assert verdict(X, X + 1e-9, AllCloseValueChecker()) == "PASS"
    assert verdict(X, -X, CosineChecker()) == "FAIL"
    assert verdict(torch.zeros(3), -torch.zeros(3), ExactChecker()) == "PASS"
    payload = torch.tensor([0x3F800000, 0x7FC00ABC], dtype=torch.int32).view(torch.float32)
    assert verdict(torch.tensor([1.0, math.nan]), payload, ExactChecker()) == "PASS"
    assert verdict(torch.tensor([1.0, 2.0]), payload, ExactChecker()) != "PASS"
    assert verdict(torch.arange(3), torch.arange(3) + 1, AllCloseValueChecker(atol=9.0)) == "FAIL"


REFERENCES = [
    ("more accurate than golden", ReferenceErrors(1e-4, 1e-6, 1.0), 1.05, "PASS"),
    ("as accurate, within rounding", ReferenceErrors(1e-4, 1.5e-4, 1.0), 1 + 1e-6, "PASS"),
    ("far less accurate", ReferenceErrors(1e-5, 1e-2, 1.0), 1 + 1e-6, "FAIL"),
    ("less accurate and beyond rounding", ReferenceErrors(1e-4, 1.5e-4, 1.0), 1.05, "FAIL"),
    ("golden itself is wrong", ReferenceErrors(0.9, 1.0, 1.0), 1.05, "INCONCLUSIVE"),
]


@pytest.mark.parametrize(
    "errors, factor, expected", [r[1:] for r in REFERENCES], ids=[r[0] for r in REFERENCES]
)
def test_a_reference_decides(errors: ReferenceErrors, factor: float, expected: str) -> None:
    assert verdict(X, X * factor, ReferenceChecker(), reference=errors) == expected


def test_a_reference_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(CheckError, match="higher precision"):
        verdict(X, X * 2, Fp64Checker())


ARITHMETIC = [
    ("layers.0", COMPOSITE),
    ("layers.0/linear", ROUNDS),
    ("layers.0/add", ROUNDS),
    ("layers.0/transpose", MOVES),
    ("embed/embedding", MOVES),
    ("norm/to", MOVES),
    ("attn/scaled_dot_product_attention", COMPOSITE),
    ("drop/dropout", Arithmetic.RANDOM),
]


@pytest.mark.parametrize("op, expected", ARITHMETIC)
def test_ops_round_in_their_own_ways(op: str, expected: Arithmetic) -> None:
    assert arithmetic_of(Op(op)) is expected
    assert is_reduction(Op(op)) == (
        op.rpartition("/")[2] in ("linear", "scaled_dot_product_attention")
    )
