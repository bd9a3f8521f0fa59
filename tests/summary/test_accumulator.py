"""Laws of the one pass: compiled code and numpy add up the same, whatever the numbers."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.measure.blocks import BLOCK
from dumpcmp.nouns.built import built as made
from dumpcmp.nouns.value import DTYPES, Portion, Value
from dumpcmp.summary import sketch
from dumpcmp.summary.sketch import SIZES, Accumulator, Totals, hash_of
from dumpcmp.summary.summary import Recipe, Summary, summarise
from tests.summary.test_summary import as_value, drawn, sums_of

core: Any = made("dumpcmp.summary._onepass")
built = pytest.mark.skipif(core is None, reason="compiled code was not built")


@contextmanager
def uncompiled() -> Iterator[None]:
    """As on a machine where the extension was not built."""
    held, sketch.absorb = sketch.absorb, None
    try:
        yield
    finally:
        sketch.absorb = held


@pytest.fixture(params=[0, 1, 2], ids=["any processor", "AVX2", "AVX-512"])
def loops(request: pytest.FixtureRequest) -> Iterator[int]:
    """The loops for vectors of one width, where the processor has them."""
    if core is None or core.take_loops(request.param) != request.param:
        pytest.skip("the processor has no such vectors, or compiled code was not built")
    yield request.param
    core.take_loops(2)


def by_numpy(value: Value, *given: Any) -> Summary:
    with uncompiled():
        return summarise(value, *given)


def alike(one: Summary, two: Summary) -> None:
    for name in ("count", "num_nan", "num_posinf", "num_neginf", "num_zero", "digest"):
        assert getattr(one, name) == getattr(two, name), name
    for name in ("min", "max"):
        assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True), name
    for name in ("sum", "sum_squares"):
        mine, its = getattr(one, name), getattr(two, name)
        assert mine == its or mine == pytest.approx(its, rel=1e-12, abs=1e-9), name
    segments = zip(one.segments, two.segments, strict=True)
    for mine, its in [(sums_of(one), sums_of(two)), *((s.sums, t.sums) for s, t in segments)]:
        scale = max(1.0, float(np.abs(its).max()))
        assert np.allclose(mine, its, rtol=1e-12, atol=1e-12 * scale)


@built
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(64, 7, 3, 5), Recipe(4096)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_and_numpy_agree(dtype: str, recipe: Recipe) -> None:
    value = drawn((71, 1203), dtype)
    alike(summarise(value, recipe), by_numpy(value, recipe))


HOLES = {
    "NaN": [math.nan],
    "infinities": [math.inf, -math.inf, -math.inf],
    "everything": [math.nan, math.inf, -math.inf, 0.0, -0.0],
    "overflowing squares": [1e200, -1e300],
    "subnormal numbers": [5e-324, 1e-310, 1e-40],
}


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", HOLES)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_they_agree_on_numbers_that_are_none(name: str, dtype: str) -> None:
    numbers = np.random.default_rng(1).standard_normal(3 * 2**16 + 5)
    for step, hole in enumerate(HOLES[name]):
        numbers[1 + step * 40_001] = hole
    value = as_value(numbers, dtype)
    alike(summarise(value), by_numpy(value))


def test_a_hole_leaves_the_others_alone() -> None:
    numbers = np.ones(3 * BLOCK + 10_000, np.float32)
    numbers[BLOCK + 5_000] = np.nan
    summary = summarise(as_value(numbers))
    assert (summary.num_nan, summary.sum, summary.min) == (1, numbers.size - 1, 1.0)


@built
@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 40_000), st.integers(0, 2**40), st.sampled_from(SIZES), st.integers(0, 9),
    st.sampled_from(["<f4", "<f8"]),
)  # fmt: skip
def test_a_run_may_begin_and_end_anywhere(
    length: int, start: int, size: int, seed: int, kind: str
) -> None:
    numbers = np.random.default_rng(length).standard_normal(length).astype(kind)
    one, two = Accumulator(size, seed), Accumulator(size, seed)
    found = one.absorb(numbers, start)
    assert found is not None
    with uncompiled():
        two.add(numbers, start)
    assert (found.min, found.max) == (numbers.min(), numbers.max())
    assert np.allclose(one.sketch().sums, two.sketch().sums, rtol=1e-12, atol=1e-11)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("kind", ["<f4", "<u2"])
@pytest.mark.parametrize("start", [0, 1, 63, 64, 16_383, 16_384, 2**40 + 77])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 200, 16_384, 40_001])
def test_whole_numbers_add_up_exactly_however_a_run_is_cut(
    length: int, start: int, kind: str
) -> None:
    numbers = np.random.default_rng(length).integers(-100, 100, length).astype(np.float32)
    bits = numbers if kind == "<f4" else (numbers.view(np.uint32) >> 16).astype(np.uint16)
    one, two = Accumulator(128, 3, 2), Accumulator(128, 3, 2)
    found = one.absorb(bits, start)
    with uncompiled():
        two.add(numbers, start)
    assert np.array_equal(one.sketch().sums, two.sketch().sums)
    assert found == Totals(
        numbers.min(), numbers.max(), numbers.sum(), np.square(numbers, dtype=float).sum(),
        int((numbers == 0).sum()),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["<f4", "<u2"])
def test_sketches_have_the_same_bits_whatever_the_width_of_vectors(loops: int, kind: str) -> None:
    drawn = np.random.default_rng(5).standard_normal(3 * 16_384 + 777).astype(np.float32)
    bits = drawn if kind == "<f4" else (drawn.view(np.uint32) >> 16).astype(np.uint16)
    here, anywhere = Accumulator(256, 3), Accumulator(256, 3)
    one = here.absorb(bits, 129)
    core.take_loops(0)
    other = anywhere.absorb(bits, 129)
    assert here.sketch().sums.tobytes() == anywhere.sketch().sums.tobytes(), loops
    assert one is not None and other is not None
    assert (one.min, one.max, one.num_zero) == (other.min, other.max, other.num_zero)


def test_numbers_may_lie_at_odd_addresses() -> None:
    bits = np.frombuffer(bytes(1) + drawn(5_000).bits.tobytes(), "<f4", offset=1)
    assert not bits.flags.aligned
    alike(summarise(Value(DTYPES["float32"], bits)), summarise(drawn(5_000)))


@built
def test_what_is_not_finite_adds_nothing() -> None:
    total = Accumulator(64)
    assert total.absorb(np.array([1.0, math.inf]), 0) is None
    assert not total.sketch().sums.any()


@built
@pytest.mark.parametrize("width, nbytes, room", [(3, 9, 128), (8, 0, 256), (8, 8, 200), (8, 8, 8)])
def test_buffers_that_do_not_fit_are_refused(width: int, nbytes: int, room: int) -> None:
    table = hash_of(0)
    assert sketch.absorb is not None
    with pytest.raises(ValueError, match="do not fit"):
        sketch.absorb(
            np.zeros(nbytes, np.uint8), width, 0, 1, table.signs, table.words, table.bases,
            np.zeros(room),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_shards_add_up_without_compiled_code(dtype: str) -> None:
    whole = drawn((6, 40, 130), dtype)
    halves = [Portion(whole.shape, (rows, np.arange(40), np.arange(130))) for rows in ROWS]
    parts = [by_numpy(Value(whole.dtype, whole.bits[p.dims[0]]), Recipe(), p) for p in halves]
    total = sums_of(parts[0]) + sums_of(parts[1])
    assert np.allclose(total, sums_of(by_numpy(whole)), rtol=1e-12, atol=1e-10)


ROWS = (np.array([0, 2, 5]), np.array([1, 3, 4]))


def test_totals_add() -> None:
    numbers = np.array([-2.0, 0.0, 3.0, 5.0])
    first, second = (
        Totals(half.min(), half.max(), half.sum(), (half**2).sum(), int((half == 0).sum()))
        for half in (numbers[:2], numbers[2:])
    )
    assert first + second == Totals(-2.0, 5.0, 6.0, 38.0, 1)
    assert Totals() + first == first
