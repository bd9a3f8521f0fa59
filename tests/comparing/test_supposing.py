"""What a difference looks like: each planted kind is named, and noise is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.comparing.closeup import MAP, close_up
from dumpcmp.comparing.supposing import suppose
from dumpcmp.nouns.value import DTYPES, Value

Numbers = NDArray[Any]
FLOAT32 = DTYPES["float32"]


def value(seed: int = 0, shape: tuple[int, ...] = (2, 16, 32)) -> Numbers:
    drawn: Numbers = np.random.default_rng(seed).standard_normal(shape)
    return drawn.astype(np.float32).astype(np.float64)


def zero_channel(x: Numbers) -> None:
    x[..., 7] = 0


def flip_channel(x: Numbers) -> None:
    x[..., 7] *= -1


def scale_head(x: Numbers) -> None:
    x[..., 8:16] *= 1.5


def swap_channels(x: Numbers) -> None:
    x[..., [3, 9]] = x[..., [9, 3]]


def repeat_token(x: Numbers) -> None:
    x[:, 12] = x[:, 1]


def from_token(x: Numbers) -> None:
    x[:, 10:] += value(9)[:, 10:]


def scale(x: Numbers) -> None:
    x *= 1.01


def shift(x: Numbers) -> None:
    x[:, 1:] = x[:, :-1].copy()


def round_to_bfloat16(x: Numbers) -> None:
    bits = x.astype(np.float32).view(np.uint32)
    x[...] = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def one_element(x: Numbers) -> None:
    x[1, 5, 7] += 3


def one_nan(x: Numbers) -> None:
    x[0, 3, 4] = np.nan


PLANTED: dict[Callable[[Numbers], Any], tuple[str, str]] = {
    zero_channel: ("zeroed", "mine is zero at index 7 of dim 2 only"),
    flip_channel: ("sign", "mine has the other sign at index 7 of dim 2 only"),
    scale_head: (
        "scale",
        "golden's times 1.5 at indices 8 to 15 of dim 2 only, which is part 1 of 4",
    ),
    swap_channels: ("swapped", "indices 3 and 9 of dim 2 are swapped"),
    repeat_token: ("repeated", "index 12 of dim 1 holds what golden has at index 1"),
    from_token: ("from one index on", "from index 10 of dim 1 on"),
    one_element: ("one element", "one element differs: [1, 5, 7] is"),
    scale: ("scale", "golden's times 1.01"),
    np.negative: ("sign", "the other sign"),
    shift: ("shift", "shifted by 1 along dim 1"),
    round_to_bfloat16: ("rounding", "rounded to bfloat16"),
    one_nan: ("not finite", "1 of 1024 elements is NaN or Inf, the first at [0, 3, 4]"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_was_planted_is_named(plant: Callable[..., Any]) -> None:
    golden = value()
    target = golden.copy()
    plant(target, out=target) if plant is np.negative else plant(target)
    best = suppose(golden, target, FLOAT32)[0]
    name, said = PLANTED[plant]
    assert (best.name, said in best.said) == (name, True), best
    assert best.fit >= 0.9


def test_a_row_among_all_rows_of_the_last_dim_is_named() -> None:
    golden = value()
    target = golden.copy()
    target[1, 3] = golden[0, 9]
    best = suppose(golden, target, FLOAT32)[0]
    assert best.said == "index 19 of the 32 rows holds what golden has at index 9"


def test_offsets_and_transposes_are_named() -> None:
    golden = value(shape=(16, 16))
    assert suppose(golden, golden + 0.25, FLOAT32)[0].said == "mine is golden's plus 0.25"
    assert suppose(golden, golden.T.copy(), FLOAT32)[0].name == "transposed"


def test_a_fault_is_named_through_the_noise_of_rounding() -> None:
    golden = value()
    target = golden * 1.01 + 1e-4 * value(1)
    assert suppose(golden, target, FLOAT32)[0].name == "scale"


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_other_values_look_like_nothing(seed: int) -> None:
    golden = value(seed)
    for target in (value(seed + 100), golden + 1e-7 * value(seed + 200)):
        assert suppose(golden, target, FLOAT32) == ()


def test_few_elements_and_equal_sides_look_like_nothing() -> None:
    assert suppose(np.ones(4), np.zeros(4), FLOAT32) == ()
    assert suppose(value(), value(), FLOAT32) == ()


def test_a_close_up_keeps_the_largest_difference_whatever_the_size() -> None:
    golden = value(shape=(3, 200, 500)).astype(np.float32)
    target = golden.copy()
    target[2, 150, 333] += 5
    found = close_up(4, Value(FLOAT32, golden), Value(FLOAT32, target))
    assert found.row == 4 and found.map_shape == (600, 500)
    assert (len(found.error_map), len(found.error_map[0])) == MAP
    assert max(map(max, found.error_map)) == pytest.approx(5)
    assert [element.at for element in found.worst] == [(2, 150, 333)]
    assert found.histogram is not None and found.histogram.num_equal == golden.size - 1
    assert sum(found.histogram.counts) == 1
    assert "dim 2: index 333 of 500 holds 100 % of the difference" in found.places


def test_a_close_up_of_other_shapes_and_of_nothing_says_why_it_shows_nothing() -> None:
    one, other = Value(FLOAT32, np.ones(3, np.float32)), Value(FLOAT32, np.ones(4, np.float32))
    assert "shapes differ" in close_up(0, one, other).problem
    empty = Value(FLOAT32, np.ones((0, 4), np.float32))
    assert "no elements" in close_up(0, empty, empty).problem


def test_nan_is_the_worst_of_all() -> None:
    golden = value().astype(np.float32)
    target = golden.copy()
    target[0, 0, 1] = np.nan
    found = close_up(0, Value(FLOAT32, golden), Value(FLOAT32, target))
    assert found.worst[0].at == (0, 0, 1) and found.error_map[0][1] == np.inf
