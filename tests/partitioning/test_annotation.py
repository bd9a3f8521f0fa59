"""Laws of the annotation language and of the plans that follow from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpcmp.partitioning.annotation import (
    AnnotationError,
    expanded,
    lengths_of,
    parse_annotation,
)
from dumpcmp.partitioning.call import call_of, leaves
from dumpcmp.partitioning.partition import Option, every_option, partition_by
from dumpcmp.partitioning.table import entry_for
from tests.partitioning.cases import LARGE, SMALL, config

TEXTS = [
    ("a k+, k+ b -> a b", "a k+, k+ b -> a b"),
    ("n (g c) h^,(g o) c->n (g o)", "n (g c^) h^, (g o^) c^ -> n (g o^)"),
    ("(a b) -> (b a)", "(a^ b^) -> (b^ a^)"),
    ("(1 a b), ? -> a b", "(1 a b^), ? -> a b^"),
    ("*, n+ e -> * e", "*, n+ e -> * e"),
    ("n iC/g 64 -> 1", "n iC/g 64 -> 1"),
]


@pytest.mark.parametrize("text, canonical", TEXTS)
def test_parsing_settles_what_may_be_split(text: Any, canonical: Any) -> None:
    assert str(parse_annotation(text)) == canonical
    assert str(parse_annotation(canonical)) == canonical


UNREADABLE = ["a", "a -> b -> c", "a -> (b", "a) -> b", "() -> a", "a ? -> b", "* * -> a"]
UNREADABLE += ["a+ -> a", "a-b -> a", "a, -> a", "(a (b c)) -> a", "(a *) -> a"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_is_refused_with_the_text(text: Any) -> None:
    with pytest.raises(AnnotationError, match="cannot read annotation"):
        parse_annotation(text)


_NAME = st.builds("{}{}".format, st.sampled_from("abcdef"), st.just(""))
_DIM = st.one_of(
    _NAME,
    st.integers(2, 9).map(str),
    st.lists(_NAME, min_size=2, max_size=3, unique=True).map(lambda n: f"({' '.join(n)})"),
)
_SHAPE = st.one_of(st.just("?"), st.lists(_DIM, min_size=1, max_size=4).map(" ".join))
_SIDE = st.lists(_SHAPE, min_size=1, max_size=3).map(", ".join)


@given(_SIDE, _SIDE)
def test_printing_and_parsing_are_inverse(inputs: Any, outputs: Any) -> None:
    annotation = parse_annotation(f"{inputs} -> {outputs}")
    assert parse_annotation(str(annotation)) == annotation


LENGTHS = [
    ("a k+, k+ b -> a b", [(2, 3), (3, 4)], {}, {"a": 2, "k": 3, "b": 4}),
    ("(g 4) h, (g o) -> (g o)", [(8, 5), (6,)], {}, {"g": 2, "h": 5, "o": 3}),
    ("(g c) -> g", [(12,)], {"g": 3}, {"g": 3, "c": 4}),
    ("*, n e -> * e", [(2, 3), (5, 4)], {}, {"d0": 2, "d1": 3, "n": 5, "e": 4}),
    ("1 -> a", [()], {}, {}),
]


@pytest.mark.parametrize("text, shapes, known, lengths", LENGTHS)
def test_lengths_follow_from_shapes(text: Any, shapes: Any, known: Any, lengths: Any) -> None:
    annotation = expanded(parse_annotation(text), shapes)
    assert lengths_of(annotation, shapes, known) == lengths


CLASHES = [
    ("a k, k b -> a b", [(2, 3), (4, 4)], "should be 3 long"),
    ("(g 4) -> g", [(9,)], "times a whole number"),
    ("a b -> a", [(2, 3, 4)], "write 3 dims"),
    ("a -> a", [(2,), (3,)], "1 inputs"),
    ("* a, * b c -> *", [(2, 3), (2, 3, 4, 5)], "'\\*' cannot stand"),
]


@pytest.mark.parametrize("text, shapes, why", CLASHES)
def test_shapes_that_clash_with_the_annotation_are_refused(
    text: Any, shapes: Any, why: Any
) -> None:
    with pytest.raises(AnnotationError, match=why):
        lengths_of(expanded(parse_annotation(text), shapes), shapes, {})


# What each option of the examples means, in words.
RULES = {
    "conv2d 3-D g2": ["split 0, split 0, split 0 -> split 0; groups 2 becomes 1"],
    "conv2d 4-D g2": ["split 1, split 0, split 0 -> split 1; groups 2 becomes 1"],
    "dropout 4-D": ["split 1 -> split 1", "split 2 -> split 2", "split 3 -> split 3"],
    "where": ["whole, split 1, whole -> split 1"],
    "view": ["split 2 -> split 1; size (-1, 768) becomes (-1, 384)"],
    "dropout 3-D": ["split 2 -> split 2"],
    "fullslice": [],
    "conv_transpose2d 3-D g1": ["split 0, split 0 -> sum"],
    "conv_transpose2d 4-D g1": ["split 1, split 0 -> sum"],
    "conv1d g1": ["split 1, split 1 -> sum"],
    "conv1d g16": ["split 1, split 0 -> split 1; groups 16 becomes 8"],
    "conv_transpose1d g8": ["split 1, split 0 -> split 1; groups 8 becomes 4"],
    "conv_transpose1d g1": ["split 1, split 0 -> sum"],
    "batchnorm2d": [
        "split 0, whole, whole, whole, whole, whole -> split 0; synchronised",
        "split 1, split 0, split 0, split 0, split 0, whole -> split 1",
    ],
    "addmm": ["split 0, split 0, whole -> split 0"] * 2,
    "instancenorm2d": ["split 0, whole, whole, whole, whole -> split 0; synchronised"],
    "embedding": ["whole, split 1 -> split 2"],
    "conv2d 3-D g16": ["split 0, split 0, split 0 -> split 0; groups 16 becomes 8"],
    "conv2d 4-D g16": ["split 1, split 0, split 0 -> split 1; groups 16 becomes 8"],
    "conv_transpose2d 3-D g16": ["split 0, split 0 -> split 0; groups 16 becomes 8"],
    "conv_transpose2d 4-D g16": ["split 1, split 0 -> split 1; groups 16 becomes 8"],
}


def planned(given: Any, option: Any) -> Any:
    entry = entry_for(call_of(given), given.anno)
    annotation = entry.annotation(1)
    lengths = entry.lengths(annotation, [])
    return partition_by(entry, annotation, lengths, option)


@pytest.mark.parametrize("name, given", [*SMALL.items(), *LARGE.items()])
def test_options_of_the_examples_become_these_rules(name: Any, given: Any) -> None:
    options = [Option(o["idx"], o["dim"]) for o in given.parti_options]
    assert [str(planned(given, option)) for option in options] == RULES[name]


@given(st.integers(2, 40), st.integers(2, 7))
def test_parts_are_as_even_as_can_be_and_cover_the_whole(length: Any, num: Any) -> None:
    if length < num:
        return
    partition = planned(config("torch.relu", (length, 3)), Option(0, 0, num))
    lengths = partition.inputs[0].lengths
    assert sum(lengths) == length
    assert max(lengths) - min(lengths) <= 1
    assert partition.inputs[0].starts == tuple(sum(lengths[:i]) for i in range(num))


def test_each_name_is_offered_once() -> None:
    entry = entry_for(call_of(config("torch.matmul", (4, 6), (6, 8))))
    annotation = entry.annotation(1)
    options = every_option(annotation, entry.lengths(annotation, []), 2)
    assert options == [Option(0, 0), Option(0, 1), Option(1, 1)]
    assert len(leaves(entry.call)) == 2
