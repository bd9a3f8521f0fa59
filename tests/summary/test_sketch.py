"""Laws of the sketch: it is linear, keyed on the whole's index, and tells distances."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.value import Portion
from dumpcmp.summary.sketch import (
    SIZES,
    Accumulator,
    Sketch,
    cells,
    runs,
    spread,
)

SEEDS = st.integers(0, 2**32)
LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([16383, 16384, 16385, 50_000]))


def draw(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(length)


def sketched(
    numbers: np.ndarray, size: int = 512, seed: int = 0, hashes: int = 1, start: int = 0
) -> Sketch:
    sums = Accumulator(size, seed, hashes)
    sums.add(numbers.astype(np.float64), start)
    return sums.sketch()


def by_definition(numbers: np.ndarray, size: int, seed: int) -> np.ndarray:
    bucket, sign = cells(np.arange(numbers.size), size, seed)
    return np.bincount(bucket, sign * numbers, size)


def close(first: Sketch, second: Sketch) -> bool:
    return np.allclose(first.sums, second.sums, rtol=1e-12, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, SEEDS, st.sampled_from(SIZES), st.integers(0, 99))
def test_runs_give_what_the_specification_says(
    length: int, drawn: int, size: int, seed: int
) -> None:
    numbers = draw(length, drawn)
    got = sketched(numbers, size, seed).sums[0]
    assert np.allclose(got, by_definition(numbers, size, seed), rtol=1e-12, atol=1e-10)


@settings(deadline=None, max_examples=40)
@given(LENGTHS, SEEDS)
def test_a_difference_of_sketches_is_the_sketch_of_the_difference(length: int, drawn: int) -> None:
    one, two = draw(length, drawn), draw(length, drawn + 1)
    assert close(sketched(one) - sketched(two), sketched(one - two))


@settings(deadline=None, max_examples=40)
@given(LENGTHS, SEEDS, st.integers(2, 5))
def test_partial_sums_add_up(length: int, drawn: int, count: int) -> None:
    terms = [draw(length, drawn + i) for i in range(count)]
    total = sketched(terms[0])
    for term in terms[1:]:
        total = total + sketched(term)
    assert close(total, sketched(np.sum(terms, axis=0)))


@settings(deadline=None, max_examples=40)
@given(LENGTHS, SEEDS, st.lists(st.floats(0, 1), max_size=6))
def test_pieces_of_any_length_add_up_to_the_whole(
    length: int, drawn: int, cuts: list[float]
) -> None:
    numbers = draw(length, drawn)
    borders = [0, *sorted(int(c * length) for c in cuts), length]
    total = sketched(numbers[:0])
    for low, high in itertools.pairwise(borders):
        total = total + sketched(numbers[low:high], start=low)
    assert close(total, sketched(numbers))


@pytest.mark.parametrize("size", SIZES[:-1])
def test_folding_gives_the_smaller_sketch(size: int) -> None:
    numbers = draw(40_000, 1)
    assert close(sketched(numbers, 4096, hashes=2).folded(size), sketched(numbers, size, hashes=2))


def test_sketches_of_two_sizes_meet_at_the_smaller() -> None:
    numbers = draw(5_000, 2)
    assert np.abs((sketched(numbers, 1024) - sketched(numbers, 256)).sums).max() < 1e-10


def test_sketches_of_two_seeds_do_not_compare() -> None:
    with pytest.raises(CheckError, match="seed 0 and 1"):
        sketched(draw(9, 0), seed=0) - sketched(draw(9, 0), seed=1)


def test_a_size_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(CheckError, match="500"):
        Accumulator(500)


DIMS = st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 70))


@settings(deadline=None, max_examples=60)
@given(DIMS, SEEDS, st.data())
def test_shards_of_any_dims_add_up(shape: tuple[int, ...], drawn: int, data: st.DataObject) -> None:
    numbers = draw(math.prod(shape), drawn).reshape(shape)
    owners = [
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))) for n in shape
    ]
    total = Accumulator(64)
    for a in range(3):
        for b in range(3):
            for c in range(3):
                dims = tuple(np.flatnonzero(o == r) for o, r in zip(owners, (a, b, c), strict=True))
                add_shard(total, numbers[np.ix_(*dims)], Portion(shape, dims))
    assert close(total.sketch(), sketched(numbers.reshape(-1), 64))


def add_shard(total: Accumulator, shard: np.ndarray, portion: Portion) -> None:
    starts, lengths = runs(portion)
    assert lengths.sum() == shard.size
    done = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        total.add(shard.reshape(-1)[done : done + length], start)
        done += length


CONTIGUOUS = [
    (Portion((4, 6, 8), (np.arange(4), np.arange(6), np.arange(8))), [(0, 192)]),
    (Portion((), ()), [(0, 1)]),
    (Portion((4, 6), (np.arange(2, 4), np.arange(6))), [(12, 12)]),
    (Portion((4, 6), (np.arange(4), np.arange(3))), [(0, 3), (6, 3), (12, 3), (18, 3)]),
    (Portion((8,), (np.array([0, 1, 4, 5]),)), [(0, 2), (4, 2)]),
    (Portion((3, 4), (np.array([2, 0]), np.arange(4))), [(8, 4), (0, 4)]),
]


@pytest.mark.parametrize("portion, expected", CONTIGUOUS)
def test_runs_are_as_long_as_they_can_be(portion: Portion, expected: list[tuple[int, int]]) -> None:
    starts, lengths = runs(portion)
    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == expected


@pytest.mark.parametrize("size, hashes", [(64, 1), (512, 1), (512, 3), (2048, 1)])
def test_the_norm_is_estimated_as_closely_as_stated(size: int, hashes: int) -> None:
    errors = []
    for trial in range(60):
        numbers = draw(20_000, trial)
        estimate = sketched(numbers, size, seed=7 * trial, hashes=hashes).norm()
        errors.append(estimate / np.linalg.norm(numbers) - 1)
    assert (
        abs(np.mean(errors)) < 4 * spread(size, hashes) / math.sqrt(60) + spread(size, hashes) ** 2
    )
    assert np.std(errors) < 1.35 * spread(size, hashes)


# seed, size, index, bucket, sign: the same stand in docs/format.md, for other implementations.
VECTORS = [
    (0, 512, 0, 382, -1),
    (0, 512, 1, 383, 1),
    (0, 512, 63, 445, -1),
    (0, 512, 64, 385, -1),
    (0, 512, 16_383, 347, -1),
    (0, 512, 16_384, 120, 1),
    (0, 4096, 1_000_000, 61, 1),
    (1, 512, 0, 458, 1),
    (1, 512, 123_456_789, 120, -1),
]


@pytest.mark.parametrize("seed, size, index, bucket, sign", VECTORS)
def test_one_element_lands_where_the_vectors_say(
    seed: int, size: int, index: int, bucket: int, sign: int
) -> None:
    one = sketched(np.ones(1), size, seed, start=index).sums[0]
    assert np.flatnonzero(one).tolist() == [bucket]
    assert one[bucket] == sign


def test_the_sketch_of_counting_numbers() -> None:
    sums = sketched(np.arange(1.0, 100_001.0), 64).sums[0]
    assert sums[:4].tolist() == [385_111.0, 4_259_354.0, -2_041_809.0, -826_190.0]
    assert sums.sum() == 7_940_954.0


def mixed(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def cell(index: int, size: int, seed: int) -> tuple[int, int]:
    """The specification in plain integers, as another implementation would write it."""

    def key(constant: int) -> int:
        return mixed(constant ^ seed * 0xD1342543DE82EF95 % 2**64)

    lane, run, block = index & 63, index >> 6 & 255, index >> 14
    z = mixed((key(0x243F6A8885A308D3) + block) % 2**64)
    rotation, offset, common = z & 255, z >> 8 & 255, -1 if z >> 63 else 1
    word = mixed((key(0x13198A2E03707344) + run + offset) % 2**64)
    base = mixed((key(0xA4093822299F31D0) + (run + rotation) % 256) % 2**64) >> 52
    return (lane + base) % size, common * (1 - 2 * (word >> lane & 1))


@given(st.integers(0, 2**40), st.sampled_from(SIZES), st.integers(0, 2**31))
def test_the_tables_agree_with_plain_integers(index: int, size: int, seed: int) -> None:
    bucket, sign = cells(np.array([index]), size, seed)
    assert (int(bucket[0]), int(sign[0])) == cell(index, size, seed)
