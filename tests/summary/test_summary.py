"""Laws of summaries: exact where they say so, and shards' join to the whole's."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import ArchiveError, CheckError
from dumpcmp.nouns.value import DTYPES, Kind, Portion, Value
from dumpcmp.summary.estimates import estimate, locate, worst_rows
from dumpcmp.summary.packing import ATTRIBUTES, COUNTS, NUMBERS, pack, reduced, unpack
from dumpcmp.summary.sketch import Sketch
from dumpcmp.summary.summary import Recipe, Summary, join, join_partial, summarise

FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind is Kind.FLOAT]


def drawn(shape: int | tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Value:
    return as_value(np.random.default_rng(seed).standard_normal(shape) * 3, dtype)


def as_value(numbers: np.ndarray, dtype: str = "float32") -> Value:
    """`numbers` in `dtype`, truncated to bfloat16 where that is it."""
    if dtype == "bfloat16":
        bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith("float8"):
        bits = (np.abs(numbers) * 10).astype(np.uint8)
    else:
        signed = np.abs(numbers) if DTYPES[dtype].name.startswith("uint") else numbers
        bits = signed.astype(DTYPES[dtype].storage)
    return Value(DTYPES[dtype], bits)


def sums_of(summary: Summary) -> np.ndarray:
    assert summary.sketch is not None
    return summary.sketch.sums


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_sums_and_counts_are_exact(dtype: str) -> None:
    value = drawn((70, 300), dtype)
    summary, numbers = summarise(value), value.numbers()
    if value.dtype.kind is Kind.COMPLEX:
        numbers = numbers.view(numbers.real.dtype)
    wide = numbers.astype(np.float64)
    assert (summary.min, summary.max) == (wide.min(), wide.max())
    assert summary.count == wide.size
    assert summary.num_zero == (wide == 0).sum()
    assert summary.sum == pytest.approx(wide.sum(), rel=1e-12, abs=1e-9)
    assert summary.mean == pytest.approx(wide.mean(), rel=1e-12, abs=1e-12)
    assert summary.std == pytest.approx(wide.std(), rel=1e-9)
    assert summary.norm == pytest.approx(np.linalg.norm(wide), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_nonfinite_elements_are_counted_and_are_zero_in_the_sketch(dtype: str) -> None:
    numbers = np.random.default_rng(0).standard_normal(40_000)
    holes = {5: np.nan, 20_000: np.inf, 20_001: np.inf, 39_999: -np.inf}
    filled = numbers.copy()
    filled[list(holes)] = 0.0
    for index, hole in holes.items():
        numbers[index] = hole
    summary, clean = summarise(as_value(numbers, dtype)), summarise(as_value(filled, dtype))
    assert (summary.num_nan, summary.num_posinf, summary.num_neginf) == (1, 2, 1)
    assert summary.num_zero == clean.num_zero - 4
    assert (summary.min, summary.max) == (clean.min, clean.max)
    assert summary.norm == pytest.approx(clean.norm, rel=1e-14)
    assert np.allclose(sums_of(summary), sums_of(clean), rtol=1e-14, atol=1e-12)


def test_nothing_finite_leaves_no_extremes() -> None:
    summary = summarise(as_value(np.full(600, np.nan)))
    assert math.isnan(summary.min) and math.isnan(summary.max) and math.isnan(summary.mean)
    assert summary.num_nan == summary.count == 600


def test_squares_may_overflow() -> None:
    summary = summarise(as_value(np.array([1e200, 3e200]), "float64"))
    assert (summary.min, summary.mean, summary.norm) == (1e200, 2e200, math.inf)
    assert math.isnan(unpack(*pack(summary), "float64", (2,)).std)


def test_an_empty_tensor_has_a_summary() -> None:
    summary = summarise(as_value(np.zeros((0, 4))))
    assert summary.count == 0 and math.isnan(summary.min)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sketch_depends_on_the_numbers_and_not_on_their_dtype(dtype: str) -> None:
    value = drawn(30_000, dtype)
    wide = as_value(value.numbers(), "float64")
    assert np.array_equal(sums_of(summarise(value)), sums_of(summarise(wide)))


SPLITS: dict[str, Callable[[tuple[int, ...], int, int], tuple[np.ndarray | None, ...]]] = {
    "rows": lambda shape, r, n: (chunks(shape[0], r, n), None, None),
    "columns": lambda shape, r, n: (None, None, chunks(shape[2], r, n)),
    "uneven middle": lambda shape, r, n: (None, chunks(shape[1], r, n), None),
    "strided rows": lambda shape, r, n: (np.arange(shape[0])[r::n], None, None),
    "rows and columns": lambda shape, r, n: (
        chunks(shape[0], r % 2, 2),
        None,
        chunks(shape[2], r // 2, 2),
    ),
    "interleaved columns": lambda shape, r, n: (None, None, interleaved(shape[2], r, n)),
}


def chunks(extent: int, rank: int, ranks: int) -> np.ndarray:
    return np.array_split(np.arange(extent), ranks)[rank]


def interleaved(extent: int, rank: int, ranks: int) -> np.ndarray:
    thirds = np.array_split(np.arange(extent), 3)
    return np.concatenate([np.array_split(third, ranks)[rank] for third in thirds])


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(segments=4), Recipe(256, 5, 3)])
@pytest.mark.parametrize("split", SPLITS)
def test_shards_join_to_the_whole(split: str, recipe: Recipe) -> None:
    whole = drawn((10, 33, 130), "bfloat16")
    expected, shards = summarise(whole, recipe), []
    for rank in range(4):
        chosen = SPLITS[split](whole.shape, rank, 4)
        dims = tuple(
            np.arange(n) if c is None else c for c, n in zip(chosen, whole.shape, strict=True)
        )
        shard = Value(whole.dtype, whole.bits[np.ix_(*dims)])
        shards.append(summarise(shard, recipe, Portion(whole.shape, dims)))
    got = join(shards, whole.shape)
    assert (got.count, got.min, got.max, got.num_zero) == (
        expected.count, expected.min, expected.max, expected.num_zero,
    )  # fmt: skip
    assert got.norm == pytest.approx(expected.norm, rel=1e-13)
    assert np.allclose(sums_of(got), sums_of(expected), rtol=1e-12, atol=1e-10)
    for mine, its in zip(got.segments, expected.segments, strict=True):
        assert np.allclose(mine.sums, its.sums, rtol=1e-12, atol=1e-10)


def test_partial_sums_join_to_the_sum() -> None:
    terms = [drawn((40, 50), seed=s).numbers().astype(np.float64) for s in range(3)]
    got = join_partial([summarise(as_value(t, "float64")) for t in terms])
    expected = summarise(as_value(np.sum(terms, axis=0), "float64"))
    assert np.allclose(sums_of(got), sums_of(expected), atol=1e-10)
    assert got.sum == pytest.approx(expected.sum)
    assert estimate(expected, got).rel_l2 < 1e-12


def test_segments_add_up_to_the_sketch() -> None:
    summary = summarise(drawn((37, 90)), Recipe(segments=16))
    total = summary.segments[0]
    for segment in summary.segments[1:]:
        total = total + segment
    assert np.allclose(total.sums, Sketch(sums_of(summary)).folded(64).sums, atol=1e-10)


RECIPES = [Recipe(), Recipe(0), Recipe(64, 3, 2, 5), Recipe(4096)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "int64", "bool"])
def test_packing_keeps_everything(dtype: str, recipe: Recipe) -> None:
    value = drawn((30, 40), dtype)
    before = reduced(summarise(value, recipe), value, lambda x: {"top": np.abs(x).max(), "n": 2})
    after = unpack(*pack(before), dtype, value.shape)
    for name in (
        "count",
        "min",
        "max",
        "sum",
        "sum_squares",
        "num_zero",
        "digest",
        "whole",
        "reduced",
    ):
        assert getattr(after, name) == getattr(before, name)
    assert after.recipe == before.recipe
    assert recipe.size == 0 or np.array_equal(sums_of(after), sums_of(before))


@pytest.mark.parametrize("name", ["whole", "sketch_size", "sketch_seed"])
def test_a_summary_whose_attributes_are_damaged_says_so(name: str) -> None:
    stored, numbers = pack(summarise(Value(DTYPES["float32"], np.zeros(4, np.float32))))
    told = dict(stored.attributes)
    for damaged in ({**told, name: "[1,"}, {n: v for n, v in told.items() if n != name}):
        with pytest.raises(ArchiveError, match="a summary of float32"):
            unpack(replace(stored, attributes=tuple(damaged.items())), numbers, "float32", (4,))


def test_a_reduction_that_fails_leaves_the_summary_and_says_why() -> None:
    value = drawn(600)
    summary = reduced(summarise(value), value, lambda x: 1 / 0)
    assert summary.reduced == {} and "ZeroDivisionError" in summary.reduce_problem
    assert "ZeroDivision" in unpack(*pack(summary), "float32", (600,)).reduce_problem


def test_equal_digests_make_everything_exact() -> None:
    metrics = estimate(summarise(drawn((30, 40))), summarise(drawn((30, 40))))
    assert metrics.exact and metrics.equal and metrics.rel_l2 == 0 and metrics.max_abs_diff == 0


CHANGES = {
    "noise 1e-2": lambda x, rng: x * (1 + 1e-2 * rng.standard_normal(x.shape)),
    "noise 1e-6": lambda x, rng: x * (1 + 1e-6 * rng.standard_normal(x.shape)),
    "rows swapped": lambda x, rng: x[[1, 0, *range(2, len(x))]],
    "rolled": lambda x, rng: np.roll(x, 1, 0),
    "one sign": lambda x, rng: np.where(np.arange(x.size).reshape(x.shape) == 777, -x, x),
    "scaled": lambda x, rng: x * 1.01,
}


@pytest.mark.parametrize("change", CHANGES)
def test_estimates_lie_within_four_deviations_of_the_truth(change: str) -> None:
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((64, 1000)) + 0.5
    golden, target = (
        as_value(numbers, "float64"),
        as_value(CHANGES[change](numbers, rng), "float64"),
    )
    truth, got = measure(golden, target), estimate(summarise(golden), summarise(target))
    assert not got.exact and not got.equal
    assert got.rel_l2 == pytest.approx(truth.rel_l2, rel=4 * got.confidence)
    assert got.rmse == pytest.approx(truth.rmse, rel=4 * got.confidence)
    assert got.cosine == pytest.approx(
        truth.cosine, abs=8 * got.confidence * truth.cosine_distance + 1e-9
    )
    assert got.pcc == pytest.approx(truth.pcc, abs=12 * got.confidence * (1 - truth.pcc) + 1e-9)
    assert (got.golden.min, got.golden.max) == (truth.golden.min, truth.golden.max)


def test_counts_of_nonfinite_elements_are_compared() -> None:
    golden = np.ones(1000)
    target = golden.copy()
    target[3] = np.nan
    assert not estimate(summarise(as_value(golden)), summarise(as_value(target))).nonfinite_agree


def test_without_a_sketch_the_distance_is_only_bounded() -> None:
    golden, target = drawn(2000), as_value(drawn(2000).numbers() * 1.5)
    metrics = estimate(summarise(golden, Recipe(0)), summarise(target, Recipe(0)))
    assert metrics.confidence == math.inf and not metrics.exact
    assert 0 < metrics.rel_l2 <= measure(golden, target).rel_l2 * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 49_999), st.floats(0.5, 10))
def test_three_hashes_find_a_single_element(index: int, size: float) -> None:
    numbers = np.random.default_rng(1).standard_normal(50_000)
    target = numbers.copy()
    target[index] += size
    recipe = Recipe(512, 0, 3)
    found = locate(
        summarise(as_value(numbers, "float64"), recipe),
        summarise(as_value(target, "float64"), recipe),
    )
    assert found is not None and found[0] == (index,)
    assert found[1] == pytest.approx(size, rel=1e-6)


def test_a_dense_difference_has_no_single_place() -> None:
    recipe = Recipe(512, 0, 3)
    assert (
        locate(summarise(drawn(50_000), recipe), summarise(drawn(50_000, seed=1), recipe)) is None
    )


def test_segments_name_the_rows_that_differ() -> None:
    golden = np.random.default_rng(1).standard_normal((160, 64))
    target = golden * (1 + 1e-7)
    target[73] += 1
    recipe = Recipe(segments=16)
    found = worst_rows(summarise(as_value(golden), recipe), summarise(as_value(target), recipe))
    assert found is not None
    first, last, excess = found
    assert first <= 73 <= last and last - first == 9 and excess > 100


def test_summaries_that_lie_elsewhere_do_not_compare() -> None:
    portion = Portion((2000,), (np.arange(1000),))
    with pytest.raises(CheckError, match="lie alike"):
        estimate(summarise(drawn(1000)), summarise(drawn(1000), portion=portion))


def test_the_vector_in_the_format_document() -> None:
    value = as_value((np.arange(600).reshape(20, 30) - 300) / 8)
    stored, numbers = pack(summarise(value, Recipe(64)))
    assert numbers[:12].tolist() == [
        600, 0, 0, 0, 1, -37.5, 37.375, -0.0625, 21.650605024263562, 530.3315590269921,
        -37.5, 281251.5625,
    ]  # fmt: skip
    assert "".join(f"{int(w):08x}" for w in numbers[12:16]) == "6b8bb770e6d7baf8247d2b36a15c2c75"
    assert numbers[16:24].tolist() == [118, 165.375, -29.75, 3.375, -2.75, 138.625, -6.25, -7.875]
    assert dict(stored.attributes)["whole"] == "[20, 30]"


def test_the_format_document_names_every_field_and_attribute() -> None:
    document = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    section = document[document.index("## Summaries") :]
    for name in (*COUNTS, *NUMBERS, *ATTRIBUTES):
        assert f"`{name}`" in section, name
