"""Laws of layouts and unsharding: what was sharded comes back, and nothing is assumed."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.align.mesh.declared import complete
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.unshard import (
    Plan,
    Whole,
    distance,
    plan_unshard,
    squares,
    unshard,
)
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import parse_coordinates, parse_layout, parse_mesh
from dumpcmp.nouns.value import DTYPES, Value, dtype_named
from tests.align.mesh.sharding import Shares, shard

SENTENCES = [
    "",
    "b s[cp] h[tp]",
    "s h[tp:partial]",
    "s h[tp,dp:partial.avg]",
    "[dp:partial]",
    "b[dp] ...",
    "(q k v)[tp:interleaved]",
    "(q=64 k=16 v=16)[tp:interleaved] h",
    "s[cp:zigzag] h",
    "v=65[tp] h",
    "v=?[tp] h",
    "d0[dp:strided.2] d1",
    "d0[tp:cyclic]",
    "b[dp] s h / dp mb",
    "b h[tp] @ dp:0/2? tp:1/2 of 4x65",
    "@ dp:0/2? tp:1/2?",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_is_its_own_canonical_form(text: str) -> None:
    assert str(parse_layout(text)) == text


UNREADABLE = [
    ("h[tp", "cannot read layout"),
    ("b [tp]x", "cannot read layout"),
    ("h[tp:foo]", "mode one of"),
    ("a[tp] b[tp]", "'tp' twice"),
    ("h[tp:partial.foo]", "takes no 'foo'"),
    ("h[tp:strided]", "split factor"),
    ("h[tp:strided.0]", "split factor"),
    ("[tp]", "behind no dim"),
    ("h[tp:interleaved]", "(q k v)[tp:interleaved]"),
    ("... ...", "more than one"),
    ("h @ tp:2/2", "place"),
    ("h @ tp", "place"),
]


@pytest.mark.parametrize("text, said", UNREADABLE)
def test_what_cannot_be_read_is_quoted_with_the_next_move(text: str, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse_layout(text)
    assert said in str(caught.value) and caught.value.hint


SHAPE = (4, 12, 24)
LAYOUTS = [
    ("b s h", "tp=2"),
    ("b s h[tp]", "tp=2"),
    ("b s h[tp]", "tp=3"),
    ("b s[cp] h[tp]", "cp=2 tp=2"),
    ("b[dp] s[cp] h[tp]", "dp=2 cp=2 tp=2"),
    ("b s[cp,tp] h", "cp=2 tp=2"),
    ("b s[tp,cp] h", "cp=2 tp=2"),
    ("b s h[tp]", "dp=2 tp=4"),
    ("b s h[tp:partial]", "tp=4"),
    ("b s[cp] h[tp:partial]", "cp=2 tp=2"),
    ("b[dp] ...", "dp=4"),
    ("... h[tp]", "dp=2 tp=2"),
    ("b s (gate up)[tp:interleaved]", "tp=4"),
    ("b s (q k v)[tp:interleaved]", "tp=2"),
    ("b s (q=16 k=4 v=4)[tp:interleaved]", "tp=4"),
    ("b s[cp:zigzag] h", "cp=2"),
    ("b s[cp:zigzag] h[tp]", "cp=3 tp=2"),
    ("b s h[tp:cyclic]", "tp=4"),
    ("b s h[dp:strided.2,tp]", "dp=2 tp=2"),
    ("b s h[dp:strided.3]", "dp=2"),
]
UNEVEN = [("b s h[tp]", "tp=5"), ("b[tp] s h", "tp=3"), ("b s[cp,tp] h", "cp=5 tp=2")]


def _held(shape: Shape, text: str, mesh: str, dtype: str = "float32") -> tuple[Value, Shares]:
    whole = Value(
        dtype_named(dtype),
        np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(DTYPES[dtype].storage),
    )
    return whole, shard(whole, parse_layout(text), parse_mesh(mesh))


def _joined(held: Shares, golden_shape: Shape | None = None) -> tuple[Plan, Whole]:
    plan = plan_unshard([one for one, _ in held], golden_shape)
    return plan, unshard(plan, lambda position: held[position][1])


@pytest.mark.parametrize("text, mesh", LAYOUTS + UNEVEN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_unsharding_undoes_sharding(text: str, mesh: str, dtype: str) -> None:
    whole, held = _held(SHAPE, text, mesh, dtype)
    plan, joined = _joined(held)
    assert joined.value.bits.tobytes() == whole.bits.tobytes()
    assert plan.shape == whole.shape and not plan.missing and not joined.disagreements


@pytest.mark.parametrize("text, mesh", LAYOUTS + UNEVEN)
def test_the_order_in_which_ranks_are_listed_does_not_matter(text: str, mesh: str) -> None:
    whole, held = _held(SHAPE, text, mesh)
    _, joined = _joined(held[::-1])
    assert np.array_equal(joined.value.bits, whole.bits)


def test_shards_of_any_sizes_join_in_the_order_of_the_axis() -> None:
    whole = np.arange(10.0)
    held = [
        (Shard(i, part.shape, parse_layout(f"v[tp] @ tp:{i}/3")), Value(DTYPES["float64"], part))
        for i, part in enumerate(np.split(whole, [7, 9]))
    ]
    assert np.array_equal(_joined(held)[1].value.bits, whole)


PADDINGS = [
    ("v=13[tp] h", (16, 3), "tp=4", None),
    ("v=?[tp] h", (16, 3), "tp=4", (13, 3)),
    ("s=13[cp:zigzag] h", (16, 3), "cp=2", None),
]


@pytest.mark.parametrize("text, shape, mesh, golden", PADDINGS)
def test_padding_is_cut(text: str, shape: Shape, mesh: str, golden: Shape | None) -> None:
    whole, held = _held(shape, text, mesh)
    assert np.array_equal(_joined(held, golden)[1].value.bits, whole.bits[:13])


REDUCTIONS = [("sum", 15.0), ("avg", 5.0), ("max", 9.0), ("min", 2.0), ("product", 72.0)]


@pytest.mark.parametrize("reduction, expected", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_terms_are_reduced_as_declared(reduction: str, expected: float, dtype: str) -> None:
    held = []
    for i, term in enumerate((4.0, 9.0, 2.0)):
        bits = _bits(np.full((2,), term, np.float32), dtype)
        layout = parse_layout(f"h[tp:partial.{reduction}] @ tp:{i}/3")
        held.append((Shard(i, (2,), layout), Value(DTYPES[dtype], bits)))
    assert _joined(held)[1].value.numbers().tolist() == [expected] * 2


def _bits(numbers: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(DTYPES[dtype].storage)


def test_short_floats_are_rounded_once() -> None:
    terms = np.array([1.0, 2.0**-8, 2.0**-8], np.float32)  # each small term alone would be lost
    held = [
        (
            Shard(i, (1,), parse_layout(f"h[tp:partial] @ tp:{i}/3")),
            Value(DTYPES["bfloat16"], _bits(terms[i : i + 1], "bfloat16")),
        )
        for i in range(3)
    ]
    assert _joined(held)[1].value.numbers().tolist() == [1.0 + 2.0**-7]


def test_a_divisor_scales_values_down() -> None:
    whole, held = _held((4, 3), "b[dp] h / dp", "dp=2")
    assert np.array_equal(_joined(held)[1].value.bits, np.divide(whole.bits, 2))


def test_replicas_that_differ_are_named() -> None:
    whole, held = _held((4, 6), "b h[tp]", "dp=2 tp=2")
    spoiled: NDArray[np.float32] = held[3][1].bits.astype(np.float32)
    spoiled[0, 0] += 1
    held[3] = (held[3][0], Value(whole.dtype, spoiled))
    (found,) = _joined(held)[1].disagreements
    assert found.ranks == (1, 3) and found.max_abs_diff == 1 and "REPLICA" in str(found)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_replicas_of_any_kind_and_shape_are_held_against_each_other(
    dtype: str, shape: Shape
) -> None:
    mesh, layout = parse_mesh("dp=2"), parse_layout("... ")
    held = [
        (
            Shard(rank, shape, layout.expanded(len(shape)).placed(mesh, rank)),
            Value(DTYPES[dtype], np.full(shape, rank, DTYPES[dtype].storage)),
        )
        for rank in range(2)
    ]
    (found,) = _joined(held)[1].disagreements
    assert found.max_abs_diff == 1 and np.isinf(found.rel_l2)
    assert distance(held[1][1], held[0][1]).rel_l2 == 1


SOME = [0.5, -3.0, 1e-30, 7.25, 2.0, -1.0]
OTHERS = [[0.5, -3.1, 0.0, 7.0, 2.0, -1.0], SOME, [np.nan] * 6, [np.inf] * 6, [1e30] * 6]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("golden", [SOME, [1e25, np.inf, *SOME[2:]]])
@pytest.mark.parametrize("other", OTHERS)
def test_sums_of_squares_are_those_of_the_distance(
    other: list[float], golden: list[float], dtype: str
) -> None:
    with np.errstate(all="ignore"):
        bits = [np.array(numbers).astype(dtype).reshape(2, 3).T for numbers in (golden, other)]
    one, two = (Value(dtype_named(dtype), held) for held in bits)
    found = distance(one, two)
    np.testing.assert_array_equal(squares(one, two), (found.error, found.norm))


def test_equal_digests_spare_the_look_at_replicas() -> None:
    layout = parse_layout("h")
    shards = [Shard(i, (3,), layout.placed(parse_mesh("tp=4"), i), "abc") for i in range(4)]
    loaded: list[int] = []

    def load(position: int) -> Value:
        loaded.append(position)
        return Value(DTYPES["float32"], np.ones(3, "<f4"))

    unshard(plan_unshard(shards), load)
    assert set(loaded) == {0}


@pytest.mark.parametrize("text", ["b h[tp]", "b h[tp:partial]", "b (a b)[tp:interleaved]"])
def test_a_missing_shard_is_named_and_a_missing_replica_is_not_needed(text: str) -> None:
    _, held = _held((2, 8), text, "tp=4")
    assert _plan_without(held, 2).missing == ("tp:2/4",)
    _, held = _held((2, 8), text, "dp=2 tp=4")
    assert not _plan_without(held, 2).missing


def _plan_without(held: Shares, rank: int) -> Plan:
    return plan_unshard([one for one, _ in held if one.rank != rank])


CLASHES = [
    (["b h[tp] @ tp:0/2", "b[tp] h @ tp:1/2"], [(2, 2)] * 2, "rank 0 says"),
    (["b h[tp] @ tp:0/2", "b h[tp] @ tp:1/2"], [(2, 2, 2)] * 2, "names 2 dims"),
    (["b h[tp] @ dp:0/2", "b h[tp] @ dp:1/2"], [(2, 2)] * 2, "no rank knows"),
    (["b h[tp] @ tp:0/2", "b h[tp] @ tp:1/2"], [(2, 2), (3, 2)], "holds 3 of dim 0"),
    (["b h @ tp:0/2?", "b h @ tp:1/2?"], [(2, 2)] * 2, "nobody says"),
    (["b h[tp] @ tp:0/2", "b h[tp] @ tp:0/2"], [(2, 2)] * 2, "same place"),
    (["(a b)[tp:interleaved] @ tp:0/2", "(a b)[tp:interleaved] @ tp:1/2"], [(3,), (2,)], "equal"),
    (["h[tp:zigzag] @ tp:0/2", "h[tp:zigzag] @ tp:1/2"], [(3,), (5,)], "but it holds"),
]


@pytest.mark.parametrize("layouts, shapes, said", CLASHES)
def test_facts_that_clash_are_both_named(
    layouts: list[str], shapes: list[Shape], said: str
) -> None:
    shards = [
        Shard(rank, shape, parse_layout(text))
        for rank, (text, shape) in enumerate(zip(layouts, shapes, strict=True))
    ]
    with pytest.raises(LayoutError) as caught:
        plan_unshard(shards)
    assert said in str(caught.value)


COMPLETIONS = [
    ("b[dp] ...", "d0 d1 d2[tp] @ dp:0/2? tp:1/2", "b[dp] d1 d2[tp] @ dp:0/2 tp:1/2"),
    ("... / dp", "d0 d1[tp] @ dp:0/2? tp:1/2", "d0 d1[tp] / dp @ dp:0/2 tp:1/2"),
    ("b h[tp:partial]", "d0 d1[tp] @ tp:1/2", "b h[tp:partial] @ tp:1/2"),
    ("b h[tp:replicated]", "d0 d1[tp] @ tp:1/2", "b h[tp:replicated] @ tp:1/2"),
    ("b h", "@ tp:1/2?", "b h @ tp:1/2"),
]


@pytest.mark.parametrize("declared, recorded, together", COMPLETIONS)
def test_what_is_declared_goes_before_what_was_recorded(
    declared: str, recorded: str, together: str
) -> None:
    assert complete(parse_layout(declared), parse_layout(recorded)) == parse_layout(together)


def test_ranks_are_numbered_row_by_row() -> None:
    mesh = parse_mesh("dp=2 tp=3")
    at = itertools.product(range(2), range(3))
    for rank, (dp, tp) in enumerate(at):
        assert mesh.coordinates(rank) == parse_coordinates(f"dp:{dp}/2 tp:{tp}/3")
