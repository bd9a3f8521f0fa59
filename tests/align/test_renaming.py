"""Names on two sides: wrappers vanish, mappings rename, and bad mappings are refused."""

from pathlib import Path

import pytest

from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.renaming import Renaming, parse_rule, unwrapped
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import Op

UNWRAPPED = [
    ("layers.0.attn/linear", "layers.0.attn/linear"),
    ("_orig_mod.layers.0", "layers.0"),
    ("module.layers.0/add", "layers.0/add"),
    ("layers.0._checkpoint_wrapped_module.attn", "layers.0.attn"),
    ("_fsdp_wrapped_module.layers.1._fsdp_wrapped_module.mlp@2/mul", "layers.1.mlp@2/mul"),
    ("_orig_mod", "<root>"),
    ("module@1/add", "<root>@1/add"),
    ("<root>", "<root>"),
]


@pytest.mark.parametrize("op, plain", UNWRAPPED)
def test_wrappers_vanish_from_names(op: str, plain: str) -> None:
    assert unwrapped(Op(op)) == plain


RENAMED = [
    ("layers.*.attn", "blocks.*.mha", "layers.3.attn/linear", "blocks.3.mha/linear"),
    ("layers.*.attn", "blocks.*.mha", "layers.3.attn.q", "blocks.3.mha.q"),
    ("layers.*.attn", "blocks.*.mha", "layers.3.attn@1/mul", "blocks.3.mha@1/mul"),
    ("layers.*.attn", "blocks.*.mha", "layers.3.attention", None),
    ("layers.*.*", "h.*.*", "layers.3.mlp/mul", "h.3.mlp/mul"),
    ("**.q", "**.query", "enc.layers.0.q", "enc.layers.0.query"),
    ("head/linear", "lm_head/matmul", "head/linear", "lm_head/matmul"),
    ("head", "lm_head", "overhead", None),
]


@pytest.mark.parametrize("pattern, target, op, name", RENAMED)
def test_a_rule_renames_what_it_matches(
    pattern: str, target: str, op: str, name: str | None
) -> None:
    assert Renaming((parse_rule(pattern, target),)).renamed(op) == name


def test_the_first_rule_that_matches_counts(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("layers.0: first\nlayers.*: blocks.*\n")
    renaming = read_mapping(path)
    assert renaming.renamed("layers.0.mlp") == "first.mlp"
    assert renaming.renamed("layers.1.mlp") == "blocks.1.mlp"


BAD = [
    ("layers.*: blocks", "different wildcards"),
    ("- a\n- b", "do not begin with names"),
    ("a: [b]", "does not map names"),
    ("a: {to: b, order: [1, 1]}", "no order of dims"),
    ("a: {to: b, groups: 2, order: [1, 0]}", "beside pieces"),
    ("a: {", "cannot read the mapping"),
]


@pytest.mark.parametrize("text, told", BAD)
def test_a_bad_mapping_is_refused_with_an_example(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(AlignError, match=told) as error:
        read_mapping(path)
    assert "blocks.*.att" in error.value.hint


def test_a_line_that_matches_nothing_is_named() -> None:
    lines = {"layers.*.attn": "blocks.*.mha", "nowhere": "x", "layers.0.mlp": "y"}
    renaming = Renaming(tuple(parse_rule(*line) for line in lines.items()))
    golden = {"layers.0.attn/linear", "layers.0.mlp", "head"}
    assert list(renaming.idle(golden, {"blocks.0.mha/linear", "head"})) == [
        "--mapping nowhere: x: golden has no such op",
        "--mapping layers.0.mlp: y: my side has no such op",
    ]


def test_a_mapping_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AlignError, match=r"missing\.yaml"):
        read_mapping(tmp_path / "missing.yaml")


FAMILIES = [
    ("layers.0.attn/linear", ("layers.0.attn", "/linear")),
    ("layers.0.attn", ("layers.0", "attn")),
    ("embed", ("<root>", "embed")),
    ("<root>", ("", "<root>")),
]


@pytest.mark.parametrize("op, family", FAMILIES)
def test_an_op_belongs_to_its_module(op: str, family: tuple[str, str]) -> None:
    assert Op(op).family == family
