"""The rule that selects what is captured."""

from __future__ import annotations

import pytest

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.selection import Io, Tap, make_tap, parse_steps

STEPS = [
    ("0", {0}),
    ("0,2-3", {0, 2, 3}),
    (" 1 , 4 - 5 ", {1, 4, 5}),
    ("2-2", {2}),
    ([0, 3], {0, 3}),
    (range(2), {0, 1}),
    (None, {0, 1, 2, 3, 4, 5}),
]


@pytest.mark.parametrize("tokens, selected", STEPS)
def test_tokens(tokens: object, selected: set[int]) -> None:
    tap = make_tap(tokens=tokens)  # type: ignore[arg-type]
    assert {step for step in range(6) if tap.selects_step(step)} == selected


@pytest.mark.parametrize("tokens", ["", "-1", "1-", "2-1", "a", "1,,2", "0.5", [], [-1], ["x"]])
def test_tokens_that_say_nothing(tokens: object) -> None:
    with pytest.raises(SelectionError) as refused:
        parse_steps(tokens)  # type: ignore[arg-type]
    assert "counted from 0" in refused.value.hint


OPS = ["<root>", "<root>/add", "layers.0.attn", "layers.0.attn/linear", "layers.0.attn.q",
       "layers.0.attn@1/linear", "layers.10.mlp", "layers.10.mlp/gelu"]  # fmt: skip

LAYERS = [
    (["layers.*.attn"], {"layers.0.attn", "layers.0.attn/linear", "layers.0.attn@1/linear"}),
    (["layers.*.attn*"], {op for op in OPS if "attn" in op}),
    (["*/gelu"], {"layers.10.mlp/gelu"}),
    (["<root>"], {"<root>", "<root>/add"}),
    ("layers.10.*", {"layers.10.mlp", "layers.10.mlp/gelu"}),
    (["layers.1.*"], set()),
    (None, set(OPS)),
]


@pytest.mark.parametrize("layers, selected", LAYERS, ids=[str(layers) for layers, _ in LAYERS])
def test_layers(layers: list[str] | str | None, selected: set[str]) -> None:
    tap = make_tap(layers=layers)
    assert {op for op in OPS if tap.selects_op(op)} == selected


@pytest.mark.parametrize("io, sides", [("all", (True, True)), ("input", (True, False)),
                                       ("output", (False, True))])  # fmt: skip
def test_sides(io: str, sides: tuple[bool, bool]) -> None:
    tap = make_tap(io=io)
    assert (tap.inputs, tap.outputs) == sides
    assert tap.io is Io(io)


RAN = ["<root>", "<root>/add", "conv1", "conv1/conv2d", "norm/layer_norm", "aten/aten.add.Tensor",
       "<root>/add_1", "layers.0.attn", "layers.0.attn/iadd", "ads", "x/max_pool2d"]  # fmt: skip
ADDS = {"<root>/add", "layers.0.attn/iadd", "aten/aten.add.Tensor"}

WORDS = [
    ("Add", ADDS), ("add", ADDS), ("ADD", ADDS), ("add_1", {*ADDS, "<root>/add_1"}),
    ("Conv_1", {"conv1/conv2d"}), ("Conv2D", {"conv1/conv2d"}), ("Conv1d", set()),
    ("LayerNorm", {"norm/layer_norm"}), ("MaxPool2d", {"x/max_pool2d"}),
    ("layers_0_attn", {"layers.0.attn"}), ("Add*", set()), ("Linear", set()),
]  # fmt: skip


@pytest.mark.parametrize("word, selected", WORDS, ids=[word for word, _ in WORDS])
def test_words_select_functions_and_nodes_however_they_are_spelled(
    word: str, selected: set[str]
) -> None:
    tap = make_tap(layers=[word])
    assert {op for op in RAN if tap.selects_op(op)} == selected


UNMATCHED = [
    (make_tap(layers=["Lineer"]), "closest: layers.0.attn/linear"),
    (make_tap(layers=["GELUS"]), "closest: layers.10.mlp/gelu"),
    (make_tap(tokens="0,7"), "--token 7 matched nothing: the program ran tokens 0 to 3"),
    (make_tap(tokens="5-8"), "--token 5-8 matched nothing"),
    (make_tap(layers=["layer.0.attn"]), "closest: layers.0.attn"),
    (make_tap(layers=["attn"]), "closest: layers.0.attn"),
]


@pytest.mark.parametrize("tap, said", UNMATCHED)
def test_a_filter_that_matched_nothing_names_the_closest(tap: Tap, said: str) -> None:
    (remark,) = tap.unmatched(4, OPS)
    assert said in remark


def test_filters_that_matched_are_not_remarked_upon() -> None:
    assert make_tap(tokens="0-3", layers=["layers.*"]).unmatched(4, OPS) == []
    assert Tap().unmatched(0, []) == []
