"""Two implementations of one model, of which one has in one what the other has in several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks import hand_llama as own
from dumpcmp.align.mapfile import parse_merge, renaming_of
from dumpcmp.align.pieces import parts_of
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.row import Cut, Verdict

TOKENS = torch.arange(3, 19).reshape(2, 8)


def dumped(model: nn.Module, path: Path) -> Path:
    with torch.no_grad(), dumpcmp.capture(model.eval(), path):
        model(TOKENS)
    return path


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=own.VOCABULARY, hidden_size=own.WIDTH, intermediate_size=own.INNER,
        num_hidden_layers=own.LAYERS, num_attention_heads=own.HEADS,
        num_key_value_heads=own.GROUPS, use_cache=False,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def golden(theirs: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(theirs, tmp_path_factory.mktemp("llama") / "golden")


def mapped(golden: Path, target: Path) -> Path:
    """The mapping that the two archives suggest."""
    return dumpcmp.propose_mapping(golden, target).write(target.parent / "mapping.yaml")


def test_an_independent_implementation_is_the_same(
    theirs: nn.Module, golden: Path, tmp_path: Path
) -> None:
    model = own.OwnLlama()
    model.take(theirs)
    target = dumped(model, tmp_path / "own")
    outcome = dumpcmp.compare(golden, target, mapping=mapped(golden, target))
    assert outcome.passed, outcome.text()
    paired = {row.key.op for row in outcome.rows if row.verdict is Verdict.PASS}
    for name, _ in theirs.named_modules():
        if name and name != "model.rotary_emb" and "act_fn" not in name and name != "model.layers":
            assert name in paired


def interleaved(x: Tensor) -> Tensor:
    """The other convention: pairs lie side by side, not half a head apart."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def planted_rotary(model: own.OwnLlama) -> None:
    for block in model.blocks:
        block.mix.rotated = interleaved  # type: ignore[union-attr]


def planted_split(model: own.OwnLlama) -> None:
    for block in model.blocks:
        weight = block.mix.wqkv.weight.data  # type: ignore[union-attr]
        q, k, v = weight.split(own.Mixer.sizes)  # type: ignore[operator]
        block.mix.wqkv.weight.data = torch.cat((q, v, k))  # type: ignore[union-attr]


def planted_order(model: own.OwnLlama) -> None:
    for block in model.blocks:
        block.norm1, block.norm2 = block.norm2, block.norm1


FAULTS: list[tuple[Callable[[own.OwnLlama], None], str]] = [
    (planted_rotary, "model.layers.0.self_attn"),
    (planted_split, "model.layers.0.self_attn"),
    (planted_order, "model.layers.0.input_layernorm"),
]


@pytest.mark.parametrize("plant, place", FAULTS)
def test_faults_of_an_implementation_are_named(
    plant: Callable[[own.OwnLlama], None],
    place: str,
    theirs: nn.Module,
    golden: Path,
    tmp_path: Path,
) -> None:
    model = own.OwnLlama()
    model.take(theirs)
    plant(model)
    target = dumped(model, tmp_path / "own")
    outcome = dumpcmp.compare(golden, target, mapping=mapped(golden, target))
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None
    named = (str(first.golden_key and first.golden_key.op), first.key.op)
    assert any(one.startswith(place) for one in named) or place in first.reason, outcome.text()


PARTS = [
    ([(2, 4), (2, 6)], (2, 10), [Cut(1, 0, 4), Cut(1, 4, 10)]),
    ([(4, 8), (2, 8)], (6, 8), [Cut(0, 0, 4), Cut(0, 4, 6)]),
    ([(4, 8), (4, 8)], (2, 4, 8), [Cut(0, 0, 1, True), Cut(0, 1, 2, True)]),
    ([(4, 8), (4, 8)], (4, 8), None),
    ([(4, 8), (4, 7)], (4, 16), None),
]


@pytest.mark.parametrize("shapes, whole, parts", PARTS)
def test_pieces_lie_where_their_shapes_fit(
    shapes: list[tuple[int, ...]], whole: tuple[int, ...], parts: list[Cut] | None
) -> None:
    assert parts_of(shapes, whole) == parts


@pytest.mark.parametrize("line", [("a.{q,k}", "b.{q,k}"), ("a.{q}", "b"), ("a.{q,k", "b")])
def test_a_line_with_pieces_has_them_on_one_side(line: tuple[str, str]) -> None:
    with pytest.raises(AlignError, match="pieces in braces"):
        parse_merge(*line)


LINES = [
    ({"a": {"to": "b", "axs": 1}}, "cannot read"),
    ({"a.{q,k}": {"to": "b", "groups": 0}}, "cannot read"),
    ({"a.{q,k}": {"axis": 1}}, "does not map names"),
    ({"a": {"to": "b", "axis": 1}}, "pieces in braces"),
    ({"a#0/output.0": "b"}, "one side is an op"),
]


@pytest.mark.parametrize("lines, told", LINES)
def test_a_line_that_cannot_be_read_is_refused(lines: dict[str, Any], told: str) -> None:
    with pytest.raises(AlignError, match=told) as error:
        renaming_of(lines, "map.yaml")
    assert error.value.hint
