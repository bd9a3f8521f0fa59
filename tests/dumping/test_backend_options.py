"""Options of a backend and single fusions reach what compiles, and run.json tells them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import dumpcmp
from dumpcmp.dumping.modes import mode_with
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.pytorch.inductor_options import parse_options

GIVEN: list[Any] = []


def listening(graph: fx.GraphModule, _inputs: Any, options: Any = None) -> Callable[..., Any]:
    """A backend that compiles nothing, and keeps its options."""
    GIVEN.append(options)
    return graph.forward


def test_words_are_json_or_themselves() -> None:
    words = ["a=true", "b=3", "c=0.5", "d=some words", "e="]
    assert parse_options(words) == {"a": True, "b": 3, "c": 0.5, "d": "some words", "e": ""}
    with pytest.raises(SelectionError, match="NAME=VALUE"):
        parse_options(["a"])


def test_another_backend_is_given_its_options(tmp_path: Path) -> None:
    mode = mode_with("boundary", backend=f"{__name__}:listening", config={"level": 2})
    with dumpcmp.capture(net := nn.Linear(4, 4), tmp_path / "d", mode=mode):
        net(torch.ones(2, 4))
    assert GIVEN == [{"level": 2}]


def test_inductor_has_its_options_while_the_block_runs(tmp_path: Path) -> None:
    from torch._inductor import config

    before = config.epilogue_fusion
    seen = []

    def noticing(graph: fx.Graph) -> None:
        seen.append(config.epilogue_fusion)

    mode = dumpcmp.Compiled(
        config={"epilogue_fusion": not before}, fusion_off=("mm_plus_mm",), twin=False
    )
    with (
        config.patch(post_grad_custom_post_pass=None, post_grad_custom_pre_pass=noticing),
        dumpcmp.capture(net := nn.Linear(4, 4), tmp_path / "d", mode=mode),
    ):
        net(torch.ones(2, 4))
    assert seen and set(seen) == {not before} and config.epilogue_fusion == before
    facts = dumpcmp.Archive(tmp_path / "d").run[0]["run"]
    assert facts["config"] == {"epilogue_fusion": not before}
    assert facts["switches"]["off"] == ["mm_plus_mm"]


@pytest.mark.parametrize(
    "mode, said",
    [
        (dumpcmp.Compiled(config={"max_autotun": True}), "closest: max_autotune"),
        (dumpcmp.Compiled(fusion_off=("mm_plus_m",)), "closest: mm_plus_mm"),
    ],
)
def test_what_this_torch_does_not_have_is_refused(mode: dumpcmp.Compiled, said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        _ = mode.options


def test_modes_that_compile_nothing_take_no_options() -> None:
    for words in ({"config": {"a": 1}}, {"fusion_off": ("ALL",)}):
        with pytest.raises(SelectionError, match="says nothing to --mode eager"):
            mode_with("eager", **words)
