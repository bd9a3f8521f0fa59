"""The compiled core and numpy find the same numbers of a pair, to the bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.measure import core, metrics
from dumpcmp.measure.lanes import laid, row_sums
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.row import EXACTLY, USUAL, Closeness, Extent, Metrics
from dumpcmp.nouns.value import DTYPES, Kind, Value

compiled = pytest.mark.skipif(not core.IS_BUILT, reason="the core was not compiled")

SHAPES = [(1,), (7,), (64,), (100,), (255,), (3, 257), (17, 72), (2, 8200), (5, 1000), (40_003,)]
SCALES = (1.0, 1.0, 1e-12, 1e-30, 1e-42, 1e30, 1e18)


def bits_of(metrics: Metrics | Extent) -> list[str]:
    """All numbers of `metrics`, each to the bit."""
    found: list[str] = []
    for name, value in metrics._asdict().items():
        if isinstance(value, Extent):
            found += bits_of(value)
        else:
            text = value.hex() if isinstance(value, float) else repr(value)
            found.append(f"{name} {text}")
    return found


def by_both(golden: Value, target: Value, closeness: Closeness) -> tuple[Metrics, Metrics]:
    native = measure(golden, target, closeness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "IS_BUILT", False)
        return native, measure(golden, target, closeness)


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Value:
    """Numbers of all sizes, with zeros, and now and then with what is not finite."""
    kind, storage = DTYPES[dtype].kind, np.dtype(DTYPES[dtype].storage)
    if kind is Kind.BOOL:
        return Value(DTYPES[dtype], rng.random(shape) < 0.5)
    if kind is Kind.INT or rng.random() < 0.15:
        octets = rng.bytes(math.prod(shape) * storage.itemsize)
        return Value(DTYPES[dtype], np.frombuffer(octets, storage).reshape(shape))
    numbers = rng.standard_normal(shape) * rng.choice(SCALES) + rng.choice([0, 0, 0, 3, 1e3])
    numbers[rng.random(shape) < rng.choice([0, 0, 0.3])] = 0
    if rng.random() < 0.2:
        odd = rng.random(shape) < 0.01
        numbers[odd] = rng.choice([np.nan, np.inf, -np.inf], int(odd.sum()))
    return rounded(numbers, dtype)


def rounded(numbers: np.ndarray, dtype: str) -> Value:
    with np.errstate(all="ignore"):
        match dtype:
            case "bfloat16":
                bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            case "float8_e5m2" | "float8_e4m3fn":
                bits = (numbers.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
            case _:
                bits = numbers.astype(DTYPES[dtype].storage)
    return Value(DTYPES[dtype], bits)


def near(rng: np.random.Generator, golden: Value) -> Value:
    """`golden` with some of its elements moved by a few steps."""
    bits = golden.bits.copy()
    octets = bits.reshape(-1).view(np.uint8)
    step = golden.dtype.nbytes  # the lowest byte of an element
    moved = rng.integers(0, bits.size, max(1, bits.size // int(rng.choice([1, 7, 300]))))
    if golden.dtype.kind is Kind.BOOL:
        octets[moved] ^= 1
    else:
        octets[moved * step] += rng.integers(0, 5, moved.size).astype(np.uint8)
    return Value(golden.dtype, bits)


@compiled
@given(
    st.integers(0, 2**32), st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)),
    st.sampled_from(SHAPES), st.sampled_from([USUAL, EXACTLY, Closeness(1e-2, 1e-3)]),
)  # fmt: skip
@settings(max_examples=250, deadline=None)
def test_the_core_and_numpy_agree_to_the_bit(
    seed: int, ours: str, theirs: str, shape: tuple[int, ...], closeness: Closeness
) -> None:
    rng = np.random.default_rng(seed)
    golden = drawn(rng, ours, shape)
    target = near(rng, golden) if seed % 2 else drawn(rng, theirs, shape)
    native, plain = by_both(golden, target, closeness)
    assert bits_of(native) == bits_of(plain)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_many_blocks_agree_and_threads_change_nothing(dtype: str) -> None:
    rng = np.random.default_rng(3)
    golden = Value(DTYPES[dtype], drawn(rng, dtype, (1300, 1040)).bits)
    target = near(rng, golden)
    native, plain = by_both(golden, target, USUAL)
    with pytest.MonkeyPatch.context() as patch, core.threads(3):
        patch.setattr(core, "_SHARE", 2)
        threaded = measure(golden, target)
    assert bits_of(native) == bits_of(plain) == bits_of(threaded)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int16"])
@pytest.mark.parametrize("offset", [1, 3, 5])
def test_odd_addresses_and_strides_change_nothing(dtype: str, offset: int) -> None:
    rng = np.random.default_rng(offset)
    golden, storage = drawn(rng, dtype, (9, 333)), np.dtype(DTYPES[dtype].storage)
    target = near(rng, golden)

    def moved(value: Value) -> Value:
        room = np.zeros(value.nbytes + 16, np.uint8)
        room[offset : offset + value.nbytes] = value.bits.reshape(-1).view(np.uint8)
        line = np.frombuffer(room.data, storage, value.numel, offset)
        return Value(value.dtype, line.reshape(value.shape))

    def strided(value: Value) -> Value:
        return Value(value.dtype, np.asfortranarray(value.bits))

    expected = bits_of(measure(golden, target))
    assert bits_of(measure(moved(golden), moved(target))) == expected
    assert bits_of(measure(strided(golden), moved(target))) == expected


@compiled
def test_a_core_that_is_wrong_on_this_processor_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    golden, target = (Value(DTYPES["float32"], np.full(99, x, np.float32)) for x in (1, 3))
    expected = bits_of(measure(golden, target))
    wrong = measure(golden, golden)
    monkeypatch.setattr(core, "IS_BUILT", True)
    monkeypatch.setattr(core, "measured", lambda *_: wrong)
    metrics._is_right.cache_clear()
    assert bits_of(measure(golden, target)) == expected
    assert not core.IS_BUILT
    metrics._is_right.cache_clear()


def added_one_by_one(row: np.ndarray) -> float:
    """The sum of a row as docs/design/speed.md has it, number by number."""
    lanes = np.zeros(8)
    for start in range(0, row.size, 256):
        piece = np.zeros(8, row.dtype)
        for at in range(start, min(start + 256, row.size)):
            piece[at % 8] += row[at]
        lanes += piece
    fours = lanes[:4] + lanes[4:]
    twos = fours[:2] + fours[2:]
    return float(twos[0] + twos[1])


@pytest.mark.parametrize("width", ["float32", "float64"])
@pytest.mark.parametrize("row", [1, 9, 64, 100, 257, 1040])
def test_rows_are_added_in_the_order_that_is_written_down(width: str, row: int) -> None:
    rows = np.random.default_rng(row).standard_normal((5, row)).astype(width)
    expected = [added_one_by_one(one) for one in rows]
    assert row_sums(laid(rows.reshape(-1), row)).tolist() == expected


@compiled
def test_buffers_that_do_not_fit_are_refused() -> None:
    found = np.empty((1, 7))
    with pytest.raises(ValueError, match="do not fit"):
        core._pairs.survey(np.zeros(9, np.uint8), 1, False, 64, 1.0, 0, 1, found)
    with pytest.raises(ValueError, match="do not fit"):
        core._pairs.survey(np.zeros(8, np.uint8), 1, False, 64, 1.0, 0, 2, found)
    with pytest.raises(ValueError, match="float64"):
        core._pairs.survey(np.zeros(8, np.uint8), 8, False, 64, 1.0, 0, 1, found)
