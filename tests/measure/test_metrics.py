"""What measure says of a pair: held against float64 truth, and every odd case by name."""

import math
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Closeness, Metrics
from dumpcmp.nouns.value import DTYPES, Value, value_of

NAN, INF = math.nan, math.inf


def metrics_of(golden: Tensor, target: Tensor, **closeness: float) -> Metrics:
    return measure(value_of(golden), value_of(target), Closeness(**closeness))


def noisy(shape: tuple[int, ...], noise: float, mean: float = 0.0, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(shape, generator=generator, dtype=torch.float64) + mean
    return [golden, golden + noise * torch.randn(shape, generator=generator, dtype=torch.float64)]


@dataclass(frozen=True)
class Truth:
    """The metrics by their textbook formulas in float64, without blocks."""

    g: np.ndarray
    t: np.ndarray

    def all(self) -> dict[str, float]:
        g, t = self.g, self.t
        d = t - g
        rms = math.sqrt(np.mean(g * g))
        centred = g - g.mean(), t - t.mean()
        return {
            "cosine": g @ t / np.linalg.norm(g) / np.linalg.norm(t),
            "pcc": centred[0]
            @ centred[1]
            / np.linalg.norm(centred[0])
            / np.linalg.norm(centred[1]),
            "rel_l2": np.linalg.norm(d) / np.linalg.norm(g),
            "gain": d @ g / (g @ g),
            "rmse": math.sqrt(np.mean(d * d)),
            "max_abs_diff": np.abs(d).max(),
            "mean_abs_diff": np.abs(d).mean(),
            "max_rel_err": (np.abs(d) / (np.abs(g) + rms)).max(),
            "mean_rel_err": (np.abs(d) / (np.abs(g) + rms)).mean(),
            "max_rel_err_plain": (np.abs(d) / np.abs(g)).max(),
            "mean_rel_err_plain": (np.abs(d) / np.abs(g)).mean(),
        }


SIZES = [(7,), (64, 256), (3, 5, 1000), (200_003,), (2, 70_000)]
FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_with_the_textbook(shape: tuple[int, ...], dtype: str) -> None:
    golden, target = (x.to(getattr(torch, dtype)) for x in noisy(shape, 0.3))
    found = metrics_of(golden, target)
    g, t = (x.double().reshape(-1).numpy() for x in (golden, target))
    g[g == 0] = 1e-30  # the textbook has no answer at golden zeros; the table below has
    for name, truth in Truth(g, t).all().items():
        if not name.endswith("_plain") or golden.double().abs().min() > 0:
            assert getattr(found, name) == pytest.approx(truth, rel=2e-5), name
    assert found.golden.norm == pytest.approx(np.linalg.norm(g), rel=1e-5)
    assert found.target.mean == pytest.approx(t.mean(), rel=1e-4, abs=1e-6)
    assert (found.target.min, found.target.max) == (t.min(), t.max())
    worst = np.unravel_index(int(np.abs(t - g).argmax()), shape)
    assert np.abs(t - g)[np.ravel_multi_index(found.worst, shape)] == pytest.approx(
        np.abs(t - g)[np.ravel_multi_index(worst, shape)]
    )


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("mean", [0.0, 10.0, 1e3, 1e5])
def test_keeps_digits_where_sides_are_nearly_equal(noise: float, mean: float) -> None:
    golden, target = noisy((1 << 17,), noise, mean)
    golden, target = (golden.float(), target.float()) if noise > 1e-3 else (golden, target)
    g, t = golden.double().numpy(), target.double().numpy()
    found = metrics_of(golden, target)
    unit, other = g / np.linalg.norm(g), t / np.linalg.norm(t)
    assert found.cosine_distance == pytest.approx(np.sum((unit - other) ** 2) / 2, rel=1e-3)
    g, t = g - g.mean(), t - t.mean()
    unit, other = g / np.linalg.norm(g), t / np.linalg.norm(t)
    assert 1 - found.pcc == pytest.approx(np.sum((unit - other) ** 2) / 2, rel=1e-3, abs=1e-15)


@dataclass(frozen=True)
class Case:
    name: str
    golden: Tensor
    target: Tensor
    expected: dict[str, object]


def t(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


CASES = [
    Case("both zero", torch.zeros(5), torch.zeros(5),
         {"equal": True, "rel_l2": 0.0, "cosine": 1.0, "pcc": NAN, "max_abs_diff": 0.0}),
    Case("both zero, of other signs", torch.zeros(5), -torch.zeros(5),
         {"equal": False, "rel_l2": 0.0, "cosine": 1.0, "cosine_distance": 0.0}),
    Case("relative beside zeros", t(0.0, 0.0, 2.0, 4.0), t(0.0, 5.0, 3.0, 4.0),
         {"max_rel_err_plain": INF, "mean_rel_err_plain": 0.125}),
    Case("zero and minus zero", t(0.0, 1.0), t(-0.0, 1.0),
         {"equal": False, "rel_l2": 0.0, "max_ulp": 0.0, "mismatched": 0, "cosine": 1.0}),
    Case("golden zero, target five", torch.zeros(6), torch.full((6,), 5.0),
         {"rel_l2": INF, "max_abs_diff": 5.0, "max_rel_err": INF, "max_rel_err_plain": INF,
          "mismatched": 6, "cosine": NAN}),
    Case("target zero", t(1.0, 2.0), torch.zeros(2), {"rel_l2": 1.0, "cosine": NAN, "gain": -1.0}),
    Case("equal constants", torch.ones(9), torch.ones(9),
         {"equal": True, "pcc": NAN, "cosine": 1.0}),
    Case("other constants", torch.ones(9), torch.full((9,), 2.0),
         {"pcc": NAN, "cosine": 1.0, "rel_l2": 1.0, "gain": 1.0}),
    Case("scaled and shifted", t(1, 2, 3, 4), t(7, 9, 11, 13), {"pcc": 1.0}),
    Case("empty", torch.zeros(0, 3), torch.zeros(0, 3), {"count": 0, "rel_l2": NAN}),
    Case("0-d", torch.tensor(2.0), torch.tensor(3.0),
         {"count": 1, "max_abs_diff": 1.0, "worst": (), "rel_l2": 0.5}),
    Case("equal NaN", t(NAN, 1.0, 2.0), t(NAN, 1.0, 2.5),
         {"nonfinite_agree": True, "num_finite": 2, "max_abs_diff": 0.5, "mismatched": 1}),
    Case("NaN of another payload",
         torch.tensor([0x7FC00000, 0], dtype=torch.int32).view(torch.float32),
         torch.tensor([0x7FC00001, 0], dtype=torch.int32).view(torch.float32),
         {"equal": False, "nonfinite_agree": True, "mismatched": 0, "max_abs_diff": 0.0}),
    Case("NaN elsewhere", t(NAN, 1.0, 2.0), t(0.0, NAN, 2.0),
         {"nonfinite_agree": False, "mismatched": 2, "num_finite": 1}),
    Case("only NaN", t(NAN, NAN), t(NAN, 1.0), {"nonfinite_agree": False, "rel_l2": NAN}),
    Case("equal infinities", t(INF, -INF, 3.0), t(INF, -INF, 3.0),
         {"equal": True, "max_abs_diff": 0.0}),
    Case("infinity of the other sign", t(INF, 1.0), t(-INF, 1.0),
         {"nonfinite_agree": False, "mismatched": 1}),
    Case("overflow to infinity", t(3e38, 1.0), t(INF, 1.0), {"nonfinite_agree": False}),
    Case("squares overflow float32", t(1e30, 2e30), t(1e30, 2.002e30),
         {"rel_l2": 2e27 / math.hypot(1e30, 2e30), "cosine": 1.0}),
    Case("squares vanish in float32", t(1e-30, 2e-30), t(1e-30, 2.002e-30),
         {"rel_l2": 2e-33 / math.hypot(1e-30, 2e-30)}),
    Case("squares overflow float64", t(1e200, 2e200, dtype=torch.float64),
         t(1e200, 2.002e200, dtype=torch.float64),
         {"rel_l2": 2e197 / math.hypot(1e200, 2e200), "max_abs_diff": 2e197,
          "rmse": 2e197 / 2**0.5}),
    Case("squares vanish in float64", t(1e-200, 2e-200, dtype=torch.float64),
         t(1e-200, 2.002e-200, dtype=torch.float64),
         {"rel_l2": 2e-203 / math.hypot(1e-200, 2e-200)}),
    Case("one huge target", torch.ones(4, dtype=torch.float64),
         t(1, 1, 1, 1e300, dtype=torch.float64), {"max_abs_diff": 1e300, "rmse": 5e299}),
    Case("one bit of float32", t(1.0, 2.0), t(1.0 + 2**-23, 2.0),
         {"max_ulp": 1.0, "mismatched": 0}),
    Case("one bit of bfloat16", t(1.0, 2.0, dtype=torch.bfloat16),
         t(1.0078125, 2.0, dtype=torch.bfloat16), {"max_ulp": 1.0, "max_abs_diff": 2**-7}),
    Case("one bit of float16 subnormals", t(2**-24, 1.0, dtype=torch.float16),
         t(2**-23, 1.0, dtype=torch.float16), {"max_ulp": 1.0}),
    Case("across zero", t(2**-149, 1.0), t(-(2**-149), 1.0), {"max_ulp": 2.0}),
    Case("bfloat16 against float32", t(1.0, 2.0), t(1.0, 2.015625, dtype=torch.bfloat16),
         {"equal": False, "max_abs_diff": 0.015625, "max_ulp": 1.0}),
    Case("integers", torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]),
         {"mismatched": 1, "max_abs_diff": 1.0, "max_ulp": NAN}),
    Case("integers beyond 2**53", torch.tensor([2**60, 1]), torch.tensor([2**60 + 1, 1]),
         {"mismatched": 1, "max_abs_diff": 1.0, "equal": False}),
    Case("extremes of int64", torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]),
         {"mismatched": 1, "max_abs_diff": 2.0**64}),
    Case("uint8 constants", torch.full((8,), 1, dtype=torch.uint8),
         torch.full((8,), 7, dtype=torch.uint8),
         {"mismatched": 8, "pcc": NAN, "max_abs_diff": 6.0}),
    Case("integers of other widths", torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 3]),
         {"mismatched": 1, "max_abs_diff": 1.0}),
    Case("booleans", torch.tensor([True, False, True]), torch.tensor([True, True, True]),
         {"mismatched": 1, "max_abs_diff": 1.0}),
    Case("boolean against float", torch.tensor([True, False]), t(1.0, 0.0), {"max_abs_diff": 0.0}),
    Case("complex", torch.tensor([1 + 1j, 2.0]), torch.tensor([1 + 1.5j, 2.0]),
         {"count": 2, "max_abs_diff": 0.5, "worst": (0,), "mismatched": 1}),
    Case("complex against real", torch.tensor([1 + 0j, 2.0]), t(1.0, 2.5), {"max_abs_diff": 0.5}),
    Case("not contiguous", torch.arange(6.0).view(2, 3).T, torch.arange(6.0).view(2, 3).T + 1,
         {"max_abs_diff": 1.0, "count": 6}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_with_an_answer_of_their_own(case: Case) -> None:
    found = metrics_of(case.golden, case.target)
    for name, expected in case.expected.items():
        value = getattr(found, name)
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(value), name
        elif isinstance(expected, float) and math.isfinite(expected):
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-300), name
        else:
            assert value == expected, name


def test_another_shape_of_the_same_size_is_refused() -> None:
    with pytest.raises(CheckError, match=r"\[2, 3\], the target \[3, 2\]"):
        metrics_of(torch.ones(2, 3), torch.ones(3, 2))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_equal_bits_are_equal_in_every_dtype(dtype: str) -> None:
    bits = np.frombuffer(np.random.default_rng(1).bytes(960), np.uint8)
    storage = np.dtype(DTYPES[dtype].storage)
    raw = (bits & 1).astype(bool) if dtype == "bool" else bits.view(storage)
    value = Value(DTYPES[dtype], raw)
    found = measure(value, Value(DTYPES[dtype], raw.copy()))
    assert found.equal and found.rel_l2 == 0 and found.mismatched == 0 and found.nonfinite_agree


@given(st.integers(0, 2**31), st.integers(1, 5000), st.sampled_from(["float32", "bfloat16"]))
@settings(max_examples=30, deadline=None)
def test_one_changed_element_is_counted_and_placed(seed: int, size: int, dtype: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(size, generator=generator).to(getattr(torch, dtype))
    place = seed % size
    target = golden.clone()
    target[place] += 3
    found = metrics_of(golden, target, rtol=1e-3, atol=1e-3)
    assert found.mismatched == 1 and found.worst == (place,)


def test_a_wrong_row_stands_out() -> None:
    golden = torch.randn(512, 128, generator=torch.Generator().manual_seed(3))
    target = golden.clone()
    target[300] = golden[7]
    assert metrics_of(golden, target).max_row_err > 0.5 > metrics_of(golden, target).rel_l2


def test_a_common_gain_scores_and_noise_does_not() -> None:
    wide = torch.randn(256, 64, generator=torch.Generator().manual_seed(3))
    golden, shrunk = wide.bfloat16(), (wide * 0.9995).bfloat16()
    other = golden.clone()
    flips = torch.rand(golden.shape, generator=torch.Generator().manual_seed(4)) < 0.05
    other.view(torch.int16)[flips] += torch.tensor([1, -1], dtype=torch.int16).repeat(
        int(flips.sum()) // 2 + 1
    )[: int(flips.sum())]
    assert (
        abs(metrics_of(golden, shrunk).gain_score) > 8 > abs(metrics_of(golden, other).gain_score)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_have_no_error_and_the_count_of_others(dtype: str) -> None:
    numbers = np.arange(1, 13).reshape(3, 4).astype(DTYPES[dtype].storage)
    value, same = (Value(DTYPES[dtype], numbers.copy()) for _ in range(2))
    found = measure(value, same)
    assert found.equal and (found.count, found.num_finite) == (12, 12)
    errors = [name for name, usual in Metrics._field_defaults.items() if usual is math.nan]
    fine = {name: 1.0 if name in ("cosine", "pcc") else 0.0 for name in errors}
    constant = {"pcc": NAN} if dtype == "bool" else {}
    assert repr({name: getattr(found, name) for name in errors}) == repr(fine | constant)


def test_memory_is_bounded_by_blocks(tmp_path: Path) -> None:
    """A pair of 512 MB compares in a few MB beyond the mapped files."""
    size = 1 << 27
    files = [np.memmap(tmp_path / name, np.float32, "w+", shape=(size,)) for name in "gt"]
    files[0][::4096], files[1][::4096] = 1.0, 1.001
    for file in files:
        file.flush()
    mapped = [np.memmap(tmp_path / name, np.float32, "r").view(np.ndarray) for name in "gt"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    golden, target = (Value(DTYPES["float32"], m) for m in mapped)
    found = measure(golden, target)
    beyond = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found.rel_l2 == pytest.approx(1e-3, rel=1e-3)
    assert beyond < (2 * size * 4 >> 10) + 100_000  # kB: what was mapped, and 100 MB
