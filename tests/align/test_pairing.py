"""Alignment: every value of either run is in a Pair, found by the pass that the case names."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.order import aligned
from dumpcmp.align.pairing import pair_values
from dumpcmp.align.renaming import Renaming, parse_rule
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Pair


def listing(
    *calls: str, model: str = "M", step: int = 0, shapes: dict[str, tuple[int, ...]] | None = None
) -> Listing:
    """A run of calls such as ``"layers.0/add"``: each with one input and one output."""
    numbers: Counter[str] = Counter()
    values = {}
    for order, op in enumerate(calls):
        for slot in ("input.0", "output.0"):
            key = Key(model, step, op, numbers[op], slot)
            shape = (shapes or {}).get(op, (2, 3))
            values[key] = (Record(key, order, "float32", shape, digest=f"{op}{order}{slot}"),)
        numbers[op] += 1
    return Listing(values)


def joined(*listings: Listing) -> Listing:
    return Listing({key: records for one in listings for key, records in one.values.items()})


def outputs(pairs: list[Pair]) -> list[tuple[str, str, str]]:
    """The pairs of outputs, as golden's op#call, the target's, and the pass."""
    return [(_name(m.golden), _name(m.target), m.by) for m in pairs if m.key.slot.is_output]


def _name(key: Key | None) -> str:
    return f"{key.op}#{key.call}" if key else ""


def test_the_same_key_pairs() -> None:
    run = listing("a/mul", "b", "b/add", "b/add")
    assert outputs(pair_values(run, run)) == [
        ("a/mul#0", "a/mul#0", "key"),
        ("b#0", "b#0", "key"),
        ("b/add#0", "b/add#0", "key"),
        ("b/add#1", "b/add#1", "key"),
    ]


def test_wrappers_are_seen_through() -> None:
    golden, target = listing("layers.0/mul"), listing("module.layers.0/mul")
    assert outputs(pair_values(golden, target)) == [
        ("layers.0/mul#0", "module.layers.0/mul#0", "prefix")
    ]


def test_a_mapping_counts_more_than_the_same_name() -> None:
    golden, target = listing("a/mul", "b/mul"), listing("a/mul", "b/mul")
    swapped = Renaming((parse_rule("a", "b"), parse_rule("b", "a")))
    assert outputs(pair_values(golden, target, swapped)) == [
        ("a/mul#0", "b/mul#0", "mapping"),
        ("b/mul#0", "a/mul#0", "mapping"),
    ]


def test_a_missing_op_does_not_shift_those_after_it() -> None:
    golden = listing("m/add", "m.norm", "m/mul", "m/add")
    target = listing("m.norm", "m/mul", "m/add")
    assert outputs(pair_values(golden, target)) == [
        ("m/add#0", "", ""),
        ("m.norm#0", "m.norm#0", "key"),
        ("m/mul#0", "m/mul#0", "key"),
        ("m/add#1", "m/add#0", "order"),
    ]


def test_an_extra_op_stands_where_it_ran() -> None:
    golden, target = listing("m.a", "m/add", "m.b"), listing("m.a", "m/mul", "m/add", "m.b")
    assert outputs(pair_values(golden, target)) == [
        ("m.a#0", "m.a#0", "key"),
        ("", "m/mul#0", ""),
        ("m/add#0", "m/add#0", "key"),
        ("m.b#0", "m.b#0", "key"),
    ]


def test_order_never_pairs_across_modules_or_shapes() -> None:
    golden = listing("a/mul", "a/mul", "b/cat", shapes={"b/cat": (4, 4)})
    target = listing("c/mul", "b/cat", "b/cat", shapes={"b/cat": (5, 5)})
    pairs = outputs(pair_values(golden, target))
    assert ("a/mul#0", "", "") in pairs and ("", "c/mul#0", "") in pairs
    assert ("b/cat#0", "", "") in pairs and ("", "b/cat#0", "") in pairs


def test_one_model_on_each_side_pairs_whatever_its_name() -> None:
    golden, target = listing("a/mul", model="Net"), listing("a/mul", model="OptimizedModule")
    assert outputs(pair_values(golden, target)) == [("a/mul#0", "a/mul#0", "key")]


def test_of_several_models_those_of_one_name_pair() -> None:
    golden = joined(listing("a/mul", model="Net"), listing("a/mul", model="Loss"))
    target = joined(listing("a/mul", model="Loss"), listing("a/mul", model="Other"))
    both = [(m.golden, m.target) for m in pair_values(golden, target) if m.golden and m.target]
    assert {(one.model, other.model) for one, other in both} == {("Loss", "Loss"), ("Net", "Other")}


def test_tokens_that_one_side_has_are_rows() -> None:
    golden = joined(*(listing("a/mul", step=step) for step in range(3)))
    target = joined(*(listing("a/mul", step=step) for step in range(1, 5)))
    found = [
        (m.golden and m.golden.step, m.target and m.target.step)
        for m in pair_values(golden, target)
    ]
    assert found == [(s, s) if 1 <= s < 3 else ((s, None) if s < 1 else (None, s)) for s in
                     (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)]  # fmt: skip


def test_an_offset_lays_tokens_side_by_side() -> None:
    golden, target = listing("a/mul", step=0), listing("a/mul", step=1)
    assert outputs(pair_values(golden, target, counting=Counting(-1))) == [
        ("a/mul#0", "a/mul#0", "key")
    ]


def test_twelve_inputs_pair_by_number() -> None:
    keys = [Key("M", 0, "m/cat", 0, f"input.0.{i}") for i in range(12)]
    run = Listing({key: (Record(key, 0, "float32", (2,)),) for key in keys})
    assert all(m.golden == m.target for m in pair_values(run, run))
    assert [m.golden.slot for m in pair_values(run, run) if m.golden] == [key.slot for key in keys]


def test_a_frame_is_laid_beside_what_it_frames() -> None:
    inner, frame = (Key("M", 0, op, 0, "output.0") for op in ("a/mul", "a"))
    record = Record(inner, 1, "float32", (2,))
    golden = Listing({frame: (Record(frame, 0, "float32", (2,), same_as=inner),), inner: (record,)})
    target = Listing({inner: (record,)})
    assert outputs(pair_values(golden, target)) == [
        ("a#0", "a/mul#0", "value"),
        ("a/mul#0", "a/mul#0", "key"),
    ]


def test_a_value_that_both_sides_had_before_knows_where() -> None:
    given, again = Key("M", 0, "a/mul", 0, "output.0"), Key("M", 0, "b/add", 0, "input.0")
    linked = Record(again, 1, "float32", (2,), same_as=given)
    run = Listing({given: (Record(given, 0, "float32", (2,)),), again: (linked,)})
    first, second = pair_values(run, run)
    assert first.repeats is None and second.repeats is first
    apart = Listing({**run.values, again: (Record(again, 1, "float32", (2,)),)})
    assert [pair.repeats for pair in pair_values(run, apart)] == [None, None]


OPS = st.sampled_from(["a/mul", "a/add", "a", "b/mul", "b/add", "module.b/add", "c"])


@given(st.lists(OPS, max_size=12), st.lists(OPS, max_size=12))
@settings(max_examples=150, deadline=None)
def test_no_value_is_lost_and_each_pair_has_one_of_its_own(
    ours: list[str], theirs: list[str]
) -> None:
    golden, target = listing(*ours), listing(*theirs)
    pairs = pair_values(golden, target)
    one, other = Counter(m.golden for m in pairs), Counter(m.target for m in pairs)
    assert one.keys() - {None} == golden.values.keys()
    assert other.keys() - {None} == target.values.keys()
    assert all(one[m.golden] == 1 or other[m.target] == 1 for m in pairs)


@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
@settings(max_examples=100, deadline=None)
def test_alignment_is_the_longest_common_subsequence(left: str, right: str) -> None:
    pairs = aligned((len(left), len(right)), [], lambda i, j: int(left[i] == right[j]))
    assert pairs == sorted(pairs) and len({j for _, j in pairs}) == len(pairs)
    assert len(pairs) == _longest(left, right)


def _longest(left: str, right: str) -> int:
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + _longest(left[1:], right[1:])
    return max(_longest(left[1:], right), _longest(left, right[1:]))


@pytest.mark.parametrize("anchors, expected", [([], 2), ([(0, 2)], 0), ([(1, 1), (0, 2)], 2)])
def test_anchors_hold(anchors: list[tuple[int, int]], expected: int) -> None:
    assert len(aligned((3, 3), anchors, lambda i, j: int(i == j and (i, j) != (1, 1)))) == expected


def test_a_weight_is_known_by_its_name_where_nothing_says_who_takes_it() -> None:
    def run(*slots: str, linked: bool) -> Listing:
        weight = Key("M", 0, "l", 0, "param.weight")
        values = {}
        for name in slots:
            op, slot = name.split()
            key = Key("M", 0, op, 0, slot)
            first = weight if linked and name == "l/linear input.1" else None
            shape = (4, 4) if slot in ("param.weight", "input.1") else (2, 4)
            order = 2 if op == "l/linear" else 1
            digest = f"{weight if first else key}" if linked else ""
            values[key] = (Record(key, order, "float32", shape, digest=digest, same_as=first),)
        return Listing(values)

    inside = ("l/linear input.1", "l/linear input.0", "l/linear output.0")
    golden = run("l param.weight", "l input.0", *inside, "l output.0", linked=True)
    target = run("l param.weight", *inside, linked=False)
    pairs = pair_values(golden, target)
    found = [(_name(m.golden), _name(m.target), m.by) for m in pairs if m.key.slot.is_weight]
    assert found == [("l#0", "l#0", "key")]
