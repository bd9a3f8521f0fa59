"""Laws of assembling: both sides whole by what is recorded, declared, solved, or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.align.mesh.assemble import Basis, assemble, by_rank, explain
from dumpcmp.align.mesh.declared import Declarations, read_stated
from dumpcmp.align.mesh.held import AssemblyError, Held, RunFacts
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import parse_layout, parse_mesh
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import DTYPES, Value
from tests.align.mesh.sharding import shard

LIMIT = 1e-5
RNG = np.random.default_rng(0)
WHOLE = Value(DTYPES["float32"], RNG.standard_normal((4, 6, 24), np.float32))
Values = list[Value]


def _value(numbers: NDArray[Any]) -> Value:
    return Value(WHOLE.dtype, numbers.astype(np.float32))


def _held(
    values: Values,
    layouts: Sequence[str],
    declared: Declarations | None = None,
    missing: Sequence[int] = (),
    digests: bool = True,
) -> Held:
    key = Key("M", 0, "attn", 0, "output.0")
    records = tuple(
        Record(
            key,
            0,
            "float32",
            value.shape,
            rank=rank,
            layout=layout,
            digest=str(hash(value.bits.tobytes())) if digests else "",
        )
        for rank, (value, layout) in enumerate(zip(values, layouts, strict=True))
        if rank not in missing
    )
    stopped = {range(rank, rank + 1): "is missing" for rank in missing}
    facts = RunFacts(len(values), declared or Declarations(), stopped)
    return Held(records, lambda record: values[record.rank], facts)


def _whole() -> Held:
    return _held([WHOLE], [""])


def _sharded(
    text: str,
    mesh: str,
    *,
    recorded: bool = False,
    declare: str | None = None,
    spoil: Callable[[Values], Values] | None = None,
    **more: Any,
) -> Held:
    held = shard(WHOLE, parse_layout(text), parse_mesh(mesh))
    values = [value for _, value in held]
    layouts = [str(one.layout) if recorded else "" for one, _ in held]
    declared = read_stated([f"attn={declare}"]).target if declare else None
    return _held(spoil(values) if spoil else values, layouts, declared=declared, **more)


STATED, SOLVED = Basis.STATED, Basis.SOLVED
KNOWN: list[tuple[str, str, dict[str, Any], Basis, str]] = [
    ("b s h[tp]", "tp=2", {"recorded": True}, STATED, "layout 'b s h[tp]'"),
    ("b s h[tp]", "tp=2", {"declare": "b s h[tp]"}, STATED, "layout 'b s h[tp]'"),
    ("b s h[tp]", "tp=2", {}, SOLVED, "layout solved (rel_l2 0) 'd0 d1 d2[ranks]'"),
    ("b s h", "tp=2", {}, Basis.REPLICAS, "the same on 2 ranks"),
    ("b s h", "tp=2", {"digests": False}, SOLVED, "replicated"),
    ("b s (q k v)[tp:interleaved]", "tp=4", {}, SOLVED, "(a b c)[ranks:interleaved]"),
    ("b s h[tp:partial]", "tp=2", {"declare": "b s h[tp:partial]"}, STATED, "partial"),
]


@pytest.mark.parametrize("text, mesh, how, basis, note", KNOWN)
def test_the_target_becomes_whole_and_says_how(
    text: str, mesh: str, how: dict[str, Any], basis: Basis, note: str
) -> None:
    golden, target = assemble(_whole(), _sharded(text, mesh, **how), LIMIT)
    assert np.array_equal(golden.value.bits, target.value.bits)
    assert target.basis is basis and golden.basis is Basis.ALONE
    assert note in target.note and not golden.note


@pytest.mark.parametrize("size", ["24", "?"])
def test_a_declared_size_cuts_the_padding(size: str) -> None:
    parts = np.split(np.pad(WHOLE.numbers(), ((0, 0), (0, 0), (0, 2))), 2, axis=2)
    declared = read_stated([f"attn=b s v={size}[tp]"]).target
    _, target = assemble(_whole(), _held([*map(_value, parts)], ["", ""], declared), LIMIT)
    assert np.array_equal(target.value.bits, WHOLE.bits)


def test_a_declaration_corrects_what_was_recorded() -> None:
    wrong = _sharded("b s h[tp]", "tp=2", recorded=True)
    said = [r.layout.replace("b s h[tp]", "b s[tp] h") for r in wrong.records]
    records = tuple(replace(r, layout=t) for r, t in zip(wrong.records, said, strict=True))
    wrong = replace(wrong, records=records)
    assert assemble(_whole(), wrong, LIMIT)[1].value.shape != WHOLE.shape
    facts = replace(wrong.facts, declared=read_stated(["attn=b s h[tp]"]).target)
    right = assemble(_whole(), replace(wrong, facts=facts), LIMIT)[1]
    assert np.array_equal(right.value.bits, WHOLE.bits)


def test_a_layout_that_is_stated_holds_against_a_golden_of_other_dims() -> None:
    flat = _held([_value(np.ravel(WHOLE.bits))], [""])
    _, target = assemble(flat, _sharded("b s h[tp]", "tp=2", recorded=True), LIMIT)
    assert np.array_equal(target.value.bits, WHOLE.bits)


@pytest.mark.parametrize("known", [True, False])
def test_golden_may_be_the_partitioned_side(known: bool) -> None:
    golden, target = assemble(_sharded("b s h[tp]", "tp=2", recorded=known), _whole(), LIMIT)
    assert np.array_equal(golden.value.bits, target.value.bits)


@pytest.mark.parametrize("text", ["b s h[tp]", "b[tp] s h", "b s (q k v)[tp:interleaved]"])
def test_both_sides_may_be_partitioned_in_different_ways_that_nobody_stated(text: str) -> None:
    golden, target = assemble(_sharded(text, "tp=2"), _sharded(text, "tp=4"), LIMIT)
    assert golden.value.shape == target.value.shape
    assert np.array_equal(golden.value.bits, target.value.bits)


def test_sides_of_the_same_ranks_and_shapes_are_compared_rank_by_rank() -> None:
    golden, target = assemble(_sharded("b[dp] s h", "dp=2"), _sharded("b[dp] s h", "dp=2"), LIMIT)
    assert target.basis is Basis.BY_RANK
    assert golden.value.shape == (2, 2, 6, 24)


def test_ranks_of_which_some_have_more_are_compared_each_by_itself() -> None:
    parts = [_value(WHOLE.bits[:3]), _value(WHOLE.bits[3:])]
    golden, target = assemble(_held(parts, ["", ""]), _held(_one_off(parts), ["", ""]), LIMIT)
    assert target.basis is Basis.BY_RANK and golden.value.numel == WHOLE.numel
    (first, error), (last, other) = by_rank(golden, target, LIMIT)
    assert (first, last, error) == (0, 1, 0.0) and other > 0.5


@pytest.mark.parametrize("recorded", [True, False])
def test_a_missing_rank_is_named(recorded: bool) -> None:
    with pytest.raises(AssemblyError, match="2"):
        assemble(_whole(), _sharded("b s h[tp]", "tp=4", recorded=recorded, missing=[2]), LIMIT)


def test_without_the_rank_that_is_missing_replicas_are_still_compared() -> None:
    _, target = assemble(_whole(), _sharded("b s h", "tp=4", missing=[2]), LIMIT)
    assert np.array_equal(target.value.bits, WHOLE.bits)


def _swap(values: Values) -> Values:
    return [values[1], values[0], *values[2:]]


def _one_off(values: Values) -> Values:
    return [*values[:-1], _value(np.add(values[-1].bits, 1))]


def _double(values: Values) -> Values:
    return [_value(np.multiply(value.bits, 2)) for value in values]


def _split(values: Values) -> Values:
    first = RNG.standard_normal(values[0].shape).astype(np.float32)
    return [_value(first), _value(np.subtract(values[0].bits, first))]


SPOILED = [
    ("b s h[tp]", _swap, "rank 0 holds the shard of rank 1"),
    ("b s (q k v)[tp:interleaved]", _swap, "rank 0 holds the shard of rank 1"),
    ("b s h[tp]", _one_off, "wrong: rank 1"),
    ("b s h", _one_off, "REPLICA"),
    ("b s h", _double, "2 times golden"),
    ("b s h", _split, "a reduction is missing"),
]


# Terms that nobody declared to be replicas are a layout of their own.
UNDECLARED = [(*case, False) for case in SPOILED if case[1] is not _split]


@pytest.mark.parametrize(
    "text, spoil, said, declared", [*((*case, True) for case in SPOILED), *UNDECLARED]
)
def test_what_is_wrong_is_said_in_words(
    text: str, spoil: Callable[[Values], Values], said: str, declared: bool
) -> None:
    target = _sharded(text, "tp=2", spoil=spoil, declare=text if declared else None)
    golden, found = assemble(_whole(), target, LIMIT)
    assert said in explain(golden, found, measure(golden.value, found.value), LIMIT)


def test_what_fits_nothing_is_not_assembled() -> None:
    noise = [_value(RNG.standard_normal(WHOLE.shape)) for _ in range(2)]
    with pytest.raises(AssemblyError, match=r"no layout fits: tried .*closest"):
        assemble(_whole(), _held(noise, ["", ""]), LIMIT)


def test_the_layout_of_a_like_value_is_taken_where_nothing_fits() -> None:
    noise = [_value(RNG.standard_normal(WHOLE.shape)) for _ in range(2)]
    like = parse_layout("b s h[ranks:partial]")
    _, target = assemble(_whole(), _held(noise, ["", ""]), LIMIT, like)
    assert np.allclose(target.value.bits, np.add(noise[0].bits, noise[1].bits))
    assert target.basis is Basis.ASSUMED


GOOD = [
    ("layers.*.o=b s h[tp:partial]", "layers.3.o", "output.0", "b s h[tp:partial]"),
    ("layers.*.o=b s h[tp:partial]", "layers.3.o@1", "output.1", "b s h[tp:partial]"),
    ("layers.*.o=b s h[tp:partial]", "layers.3.o", "grad_output.0", None),
    ("layers.*.o=b s h[tp:partial]", "layers.3.o", "input.0", None),
    ("layers.*.o output.0=b s v=65[tp]", "layers.3.o", "output.0", "b s v=65[tp]"),
    ("layers.*.o output.0=b s v=65[tp]", "layers.3.o", "input.0", None),
    ("layers.*.o=b s h", "layers.3.o", "param.weight", None),
    ("* param.*=d[dp] ...", "layers.3.o", "param.weight", "d[dp] ..."),
]


@pytest.mark.parametrize("option, op, slot, layout", GOOD)
def test_an_option_speaks_of_ops_and_slots(
    option: str, op: str, slot: str, layout: str | None
) -> None:
    found = read_stated([option]).target.layout_of(Key("M", 0, op, 0, slot))
    assert found == (parse_layout(layout) if layout else None)


def test_a_line_is_idle_where_no_run_that_it_speaks_of_has_its_op(tmp_path: Path) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text("'a*': b s\n'c': b s\ngolden: {'b': b s}\ntarget: {'b2': b s}\n")
    said = list(read_stated([str(path)]).idle([Op("a.1")], [Op("b"), Op("b2@1")]))
    assert [line.split("'")[1] for line in said] == ["c", "b"]


def test_a_file_may_speak_of_one_side_and_the_last_line_holds(tmp_path: Path) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(
        "mesh: tp=4\n"
        "'attn*': b s h\n"
        "attn: {output.0: 'b s h[tp]', param.weight: 'o[tp] i'}\n"
        "golden: {mesh: tp=2, attn: 'b[tp] s h'}\n"
    )
    stated = read_stated([str(path)])
    key = Key("M", 0, "attn", 0, "output.0")
    assert str(stated.target.layout_of(key)) == "b s h[tp]"
    assert str(stated.target.mesh) == "tp=4" and str(stated.golden.mesh) == "tp=2"
    assert str(stated.golden.layout_of(key)) == "b[tp] s h"
    later = read_stated([str(path), "attn=b s h[tp:partial]"])
    assert str(later.target.layout_of(key)) == "b s h[tp:partial]"


BAD = [
    ("attn", "OP=LAYOUT"),
    ("attn=b s h[tp", "attn: cannot read layout"),
    ("mesh=tp", "cannot read mesh"),
    ("nowhere.yaml", "cannot read the layouts"),
]


@pytest.mark.parametrize("option, said", BAD)
def test_an_option_that_cannot_be_read_is_quoted(option: str, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        read_stated([option])
    assert said in str(caught.value)


@pytest.mark.parametrize("basis", [basis for basis in Basis if basis])
def test_the_page_on_layouts_tells_every_basis(basis: Basis) -> None:
    page = Path(__file__, "../../../../docs/layouts.md").resolve().read_text()
    assert f"| `{basis}" in page


@pytest.mark.parametrize("num_ranks", [64, 512])
@pytest.mark.parametrize("replicas", [True, False])
def test_what_is_said_of_hundreds_of_ranks_fits_into_a_line(num_ranks: int, replicas: bool) -> None:
    whole = _value(RNG.standard_normal((2 if replicas else num_ranks, 8)))
    shares = [whole if replicas else _value(whole.bits[n : n + 1]) for n in range(num_ranks)]
    wrong = [n for n in range(num_ranks) if n % 8 == 3]
    for n in wrong:
        shares[n] = _value(np.add(shares[n].bits, 1.0 + n))
    word = "b h" if replicas else "b[tp] h"
    layouts = [f"{word} @ tp:{n}/{num_ranks}" for n in range(num_ranks)]
    golden, target = assemble(_held([whole], [""]), _held(shares, layouts), LIMIT)
    said = explain(golden, target, measure(golden.value, target.value), LIMIT)
    assert "ranks 3, 11, 19, 27, 35, 43, 51, 59" in said and "right: ranks 0-2, 4-10" in said
    assert len(said) < 600
