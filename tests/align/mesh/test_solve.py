"""Laws of solving: a layout that nobody stated is found from the values, or honestly not found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.align.mesh.culprits import about_ranks, likeliest
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.solve import Question, Solved, Unsolved, solve, supposing
from dumpcmp.nouns.layouts import Coordinate, Layout, parse_layout, parse_mesh
from dumpcmp.nouns.value import DTYPES, Value
from tests.align.mesh.sharding import Shares, shard

LIMIT = 1e-5


def _golden(shape: tuple[int, ...], seed: int = 0) -> Value:
    return Value(DTYPES["float32"], np.random.default_rng(seed).standard_normal(shape, np.float32))


def _shares(golden: Value, text: str, mesh: str) -> Shares:
    return shard(golden, parse_layout(text), parse_mesh(mesh))


def _question(golden: Value, held: Shares, values: list[Value], *, placed: bool = True) -> Question:
    """The shards as plain tensors: without a sentence, with or without their coordinates."""
    shards = []
    for one, _ in held:
        coordinates = one.layout.known(False).coordinates if placed else ()
        shards.append(Shard(one.rank, one.shape, Layout(coordinates=coordinates)))
    return Question(golden, shards, values.__getitem__, LIMIT)


def _noisy(held: Shares) -> list[Value]:
    """Rounding noise on every shard, and partial values as random terms."""
    rng = np.random.default_rng(1)
    noise = [1 + 1e-7 * rng.standard_normal(value.shape) for _, value in held]
    values = [
        np.multiply(v.bits, n).astype(np.float32) for (_, v), n in zip(held, noise, strict=True)
    ]
    partial = [c for c in held[0][0].layout.over if c.mode == "partial"]
    if partial:
        spread = rng.standard_normal(values[0].shape).astype(np.float32)
        values = [value + spread * (-1) ** rank for rank, value in enumerate(values)]
    return [Value(DTYPES["float32"], value) for value in values]


CASES: list[tuple[str, str, Shape]] = [
    ("d0 d1 d2[t:replicated]", "t=2", (2, 6, 12)),
    ("d0[t] d1 d2", "t=2", (2, 6, 12)),
    ("d0 d1[t] d2", "t=3", (2, 6, 12)),
    ("d0 d1 d2[t]", "t=4", (2, 6, 12)),
    ("d0 d1 d2[t:partial]", "t=2", (2, 6, 12)),
    ("d0[t] d1", "t=2", (65, 4)),
    ("d0 (a b)[t:interleaved]", "t=2", (5, 16)),
    ("d0 (a b c)[t:interleaved]", "t=2", (5, 24)),
    ("d0 (a=16 b=4 c=4)[t:interleaved]", "t=2", (5, 24)),
    ("(a=32 b=8 c=8)[t:interleaved] d1", "t=4", (48, 16)),
    ("d0[t:zigzag] d1", "t=2", (16, 4)),
    ("d0[t:cyclic] d1", "t=4", (16, 4)),
    ("d0[u] d1[t]", "u=2 t=2", (8, 12)),
    ("d0 d1[u:replicated,t:partial]", "u=2 t=2", (8, 12)),
    ("d0[u] d1[t:replicated]", "u=2 t=2", (8, 12)),
]


@pytest.mark.parametrize("text, mesh, shape", CASES)
def test_the_layout_behind_the_shards_is_found(text: str, mesh: str, shape: Shape) -> None:
    golden = _golden(shape)
    held = _shares(golden, text, mesh)
    found = solve(_question(golden, held, _noisy(held)))
    assert isinstance(found, Solved), found
    assert set(found.plan.layout.placements) == set(parse_layout(text).placements)
    assert np.allclose(found.whole.value.bits, golden.bits, rtol=1e-4, atol=1e-5)
    assert 0 < found.rel_l2 < LIMIT


@pytest.mark.parametrize("text, mesh, shape", CASES)
def test_it_is_found_on_a_mesh_that_nobody_named(text: str, mesh: str, shape: Shape) -> None:
    golden = _golden(shape)
    held = _shares(golden, text, mesh)
    found = solve(_question(golden, held, _noisy(held), placed=False))
    assert isinstance(found, Solved), found
    assert np.allclose(found.whole.value.bits, golden.bits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placed", [True, False])
def test_shards_are_supposed_to_lie_as_a_like_value_whatever_its_axis_is_called(
    placed: bool,
) -> None:
    golden = _golden((8, 12))
    held = _shares(golden, "d0 d1[t]", "t=2")
    question = _question(golden, held, [value for _, value in held], placed=placed)
    plan = supposing(question, parse_layout("d0 d1[t]"))
    assert plan is not None and plan.layout == parse_layout(f"d0 d1[{'t' if placed else 'ranks'}]")
    assert supposing(question, parse_layout("d0[u] d1[t]")) is None


def _swapped(values: list[Value]) -> list[Value]:
    return [values[1], values[0], *values[2:]]


def _one_wrong(values: list[Value]) -> list[Value]:
    return [*values[:-1], Value(values[0].dtype, np.add(values[-1].bits, np.float32(1)))]


def _larger(value: Value) -> Value:
    return Value(value.dtype, np.multiply(value.bits, np.float32(1.1)))


@pytest.mark.parametrize("spoil", [_swapped, _one_wrong])
@pytest.mark.parametrize("text", ["d0 d1[t]", "d0[t] d1", "(a b)[t:interleaved] d1"])
def test_wrong_shards_fit_nothing_and_it_says_what_was_tried(
    spoil: Callable[[list[Value]], list[Value]], text: str
) -> None:
    golden = _golden((8, 12))
    held = _shares(golden, text, "t=2")
    found = solve(_question(golden, held, spoil([value for _, value in held])))
    assert isinstance(found, Unsolved)
    assert str(parse_layout(text)).replace("(a b)", "d0") in str(found) or "(a b)" in str(found)
    assert found.rel_l2 > LIMIT


def test_terms_are_not_taken_for_a_gradient_that_must_have_been_reduced() -> None:
    golden = _golden((4, 4))
    held = _shares(golden, "d0 d1[t:partial]", "t=2")
    question = replace(_question(golden, held, _noisy(held)), may_be_partial=False)
    assert isinstance(solve(question), Unsolved)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_mean_over_fewer_samples_fits_only_where_it_may(scaled: bool) -> None:
    golden = _golden((4, 4))
    held = _shares(golden, "d0[dp] d1", "dp=2")
    values = [Value(v.dtype, np.multiply(v.bits, np.float32(2))) for _, v in held]
    found = solve(replace(_question(golden, held, values), may_be_scaled=scaled))
    assert isinstance(found, Solved if scaled else Unsolved)
    assert not isinstance(found, Solved) or found.plan.layout.divided_by == ("dp",)


def test_after_a_transposition_samples_lie_along_the_second_dim() -> None:
    golden = _golden((4, 4))
    held = _shares(golden, "d0 d1[dp]", "dp=2")
    values = [Value(v.dtype, np.multiply(v.bits, np.float32(2))) for _, v in held]
    question = replace(_question(golden, held, values), may_be_scaled=True)
    assert isinstance(solve(question), Unsolved)
    assert isinstance(solve(replace(question, sample_dim=1)), Solved)


def test_shards_of_other_shapes_fit_nothing() -> None:
    golden = _golden((4, 4))
    shards = [Shard(rank, (3, 3), parse_layout(f"@ t:{rank}/2?")) for rank in range(2)]
    found = solve(Question(golden, shards, lambda _: _golden((3, 3)), LIMIT))
    assert isinstance(found, Unsolved) and not found.tried


def test_of_many_ranks_some_that_are_right_show_the_layout_and_no_other_is_tried() -> None:
    golden = _golden((40, 6))
    held = _shares(golden, "d0[ranks] d1", "ranks=20")
    wrong = [_larger(v) if n % 2 else v for n, (_, v) in enumerate(held)]
    question = _question(golden, held, wrong, placed=False)
    found = solve(question)
    assert isinstance(found, Unsolved) and found.tried[-1] == "d0[ranks] d1"
    plan = likeliest(question)
    assert plan is not None and str(plan.layout) == "d0[ranks] d1"
    (said,) = about_ranks(question, plan)
    assert said.startswith("wrong: ranks 1, 3, 5") and "right: ranks 0, 2, 4" in said
    all_wrong = [_larger(value) for _, value in held]
    none = solve(_question(golden, held, all_wrong, placed=False))
    assert isinstance(none, Unsolved) and len(none.tried) > len(found.tried)


def test_padding_is_no_share_that_fits() -> None:
    """Two ranks in two pairs have half each; of one axis of four, two would have nothing."""
    golden = _golden((4, 8))
    held = _shares(golden, "d0[u] d1[t:replicated]", "u=2 t=2")
    wrong = [_larger(value) if n > 1 else value for n, (_, value) in enumerate(held)]
    question = _question(golden, held, wrong, placed=False)
    plan = likeliest(question)
    assert plan is not None and str(plan.layout) == "d0[ranks0] d1[ranks1:replicated]"
    assert [said.partition(" (")[0] for said in about_ranks(question, plan)] == ["wrong: rank 2"]


EMPTY = [
    ((5,), 0, (0,)),  # all of it on the last rank
    ((5,), 0, (5,)),
    ((6, 4), 0, (6, 6)),
    ((6, 4), 1, (0, 2, 2)),
]


@pytest.mark.parametrize("shape, dim, cuts", EMPTY)
@pytest.mark.parametrize("placed", [True, False])
def test_ranks_without_a_share_are_part_of_a_layout(
    shape: Shape, dim: int, cuts: Shape, placed: bool
) -> None:
    golden = _golden(shape)
    found = solve(_uneven(golden, np.split(golden.bits, cuts, axis=dim), placed))
    assert isinstance(found, Solved), found
    assert np.array_equal(found.whole.value.bits, golden.bits)


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("shape", [(6,), (6, 4), (2, 6, 12)])
def test_ranks_that_all_hold_nothing_fit_nothing(shape: Shape, num: int, placed: bool) -> None:
    golden, void = _golden(shape), np.zeros((0,) * len(shape), np.float32)
    assert isinstance(solve(_uneven(golden, [void] * num, placed)), Unsolved)
    whole = Value(golden.dtype, void)
    assert isinstance(solve(_uneven(whole, [golden.bits] * num, placed)), Unsolved)


def _uneven(golden: Value, parts: list[NDArray[Any]], placed: bool) -> Question:
    coordinates = [(Coordinate("t", rank, len(parts), known=False),) for rank in range(len(parts))]
    shards = [
        Shard(rank, part.shape, Layout(coordinates=coordinates[rank] if placed else ()))
        for rank, part in enumerate(parts)
    ]
    values = [Value(golden.dtype, part) for part in parts]
    return Question(golden, shards, values.__getitem__, LIMIT)
