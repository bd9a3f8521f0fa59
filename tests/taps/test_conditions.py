"""Conditions that torch asks before it takes one of two paths: a capture changes none of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, has_torch_function, has_torch_function_variadic

import dumpcmp
from dumpcmp import Archive
from dumpcmp.taps.modes.torch_conditions import OVERRIDE_QUESTIONS, PATHS_BY_TRACING

TORCH = Path(torch.__file__).parent
PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
LAYER = "_transformer_encoder_layer_fwd"


def layer(**told: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **told)


# model, what it is given besides its input, and the op that it runs as
FUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        {},
        "_native_multi_head_attention",
    ),
    "attention, padded": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        {"key_padding_mask": PADDED, "need_weights": False},
        "_native_multi_head_attention",
    ),
    "layer": (layer, {}, LAYER),
    "layer, norm first, gelu": (lambda: layer(norm_first=True, activation="gelu"), {}, LAYER),
    "layer, causal": (layer, {"src_mask": CAUSAL}, LAYER),
    "layer, padded": (layer, {"src_key_padding_mask": PADDED}, LAYER),
    "encoder": (lambda: nn.TransformerEncoder(layer(), 2), {}, LAYER),
    "encoder, padded": (
        lambda: nn.TransformerEncoder(layer(), 2),
        {"src_key_padding_mask": PADDED},
        LAYER,
    ),
    "encoder, padded, causal": (
        lambda: nn.TransformerEncoder(layer(), 2),
        {"src_key_padding_mask": PADDED, "mask": CAUSAL},
        LAYER,
    ),
}


def run(model: nn.Module, told: dict[str, Any]) -> list[Tensor]:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = model(x, x, x, **told) if type(model) is nn.MultiheadAttention else model(x, **told)
    return [each for each in (given if isinstance(given, tuple) else (given,)) if each is not None]


@pytest.mark.each_value_once
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
def test_layers_run_as_the_fused_op_that_they_are_without_a_capture(
    mode: str, name: str, tmp_path: Path
) -> None:
    make, told, op = FUSED[name]
    torch.manual_seed(0)
    model = make().eval()
    wanted = run(model, told)
    with dumpcmp.capture(model, tmp_path / "d", mode=mode):
        got = run(model, told)
    assert len(got) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
    named = f"aten.{op}" if mode == "aten" else op
    assert named in {key.op.partition("/")[2] for key in Archive(tmp_path / "d")}


class Other(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


def asks(x: Tensor) -> list[bool]:
    """Whether something overrides torch functions: the same by every name of the question."""
    return [
        has_torch_function((x,)),
        has_torch_function_variadic(x, x),
        torch.overrides.has_torch_function((x,)),
        torch.overrides.has_torch_function_unary(x),
    ]


class Asking(nn.Module):
    def __init__(self, question: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.question = question
        self.answers: list[object] = []

    def forward(self, x: Tensor) -> Tensor:
        self.answers.append(self.question(x))
        with Other():
            self.answers.append(self.question(x))
        self.answers.append(self.question(x.as_subclass(Subclass)))
        return x + 1


def test_who_only_asks_does_not_hear_of_the_capture(tmp_path: Path) -> None:
    model = Asking(asks)
    model(torch.ones(2))
    wanted, model.answers = model.answers, []
    assert wanted[0] == [False] * 4
    with dumpcmp.capture(model, tmp_path / "d"):
        model(torch.ones(2))
    assert model.answers == wanted


def test_questions_are_torchs_own_again_when_a_capture_ends(tmp_path: Path) -> None:
    names = {name: getattr(torch.overrides, name) for name in OVERRIDE_QUESTIONS}
    mine = has_torch_function, has_torch_function_variadic
    with dumpcmp.capture(None, tmp_path / "d"):
        nn.Linear(1, 1)(torch.ones(1))
        from torch.overrides import has_torch_function_unary as late  # noqa: F401
    assert {name: getattr(torch.overrides, name) for name in OVERRIDE_QUESTIONS} == names
    assert mine == (has_torch_function, has_torch_function_variadic)
    assert mine[0] is names["has_torch_function"]


def overridable(x: Tensor) -> Tensor:
    """A function of the program that gives its calls to whatever overrides it."""
    if has_torch_function((x,)):
        given: Tensor = torch.overrides.handle_torch_function(overridable, (x,), x)
        return given
    return x.sin()


class Overridable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return overridable(x)


def test_who_hands_calls_over_is_recorded(tmp_path: Path) -> None:
    with dumpcmp.capture(None, tmp_path / "d"):
        Overridable()(torch.ones(2))
    assert "<root>/overridable" in {key.op for key in Archive(tmp_path / "d")}


def test_a_program_may_script_a_layer_that_asks(tmp_path: Path) -> None:
    model, x = layer().eval(), torch.ones(2, 5, 8)
    wanted = torch.jit.script(model)(x)
    with dumpcmp.capture(None, tmp_path / "d"):
        got = torch.jit.script(model)(x)
    assert torch.equal(got, wanted)


class Traced(nn.Module):
    """Computes something else where it is told that it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.compiler.is_dynamo_compiling():
            return x.cos()
        return x.sin()


@pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
def test_a_program_that_is_traced_for_the_capture_alone_does_not_hear_of_it(
    mode: str, tmp_path: Path
) -> None:
    x = torch.ones(2)
    with dumpcmp.capture(None, tmp_path / "d", mode=mode):
        assert torch.equal(Traced()(x), x.sin())


def test_a_program_that_compiles_itself_hears_of_it(tmp_path: Path) -> None:
    model, x = Traced(), torch.ones(2)
    with dumpcmp.capture(None, tmp_path / "d", mode="fx"):
        assert torch.equal(torch.compile(model, backend="eager")(x), x.cos())
    with dumpcmp.capture(None, tmp_path / "e", mode=dumpcmp.Boundary("eager")):
        assert torch.equal(model(x), x.cos())


def functions_in(module: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node


def names_in(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def askers(*rooms: str) -> Iterator[tuple[str, str, set[str]]]:
    """The functions of torch in these rooms, with their module and the names that they say."""
    for room in rooms:
        files = [TORCH / room] if room.endswith(".py") else sorted((TORCH / room).rglob("*.py"))
        for file in files:
            module = ".".join(("torch", *file.relative_to(TORCH).with_suffix("").parts))
            for name, node in functions_in(file):
                yield module, name, names_in(node)


ROOMS = (
    "nn",
    "functional.py",
    "_tensor.py",
    "_lowrank.py",
    "_lobpcg.py",
    "_linalg_utils.py",
    "amp",
)


def test_all_of_torch_that_only_asks_for_overrides_is_known() -> None:
    """Whoever has the question by its own name, and not torch.overrides', hands calls over."""
    questions = set(OVERRIDE_QUESTIONS)
    only_ask = {
        (module, name)
        for module, name, names in askers(*ROOMS)
        if names & questions and not any(n.endswith("torch_function") for n in names - questions)
    }
    assert only_ask == {
        ("torch.nn.modules.activation", "forward"),
        ("torch.nn.modules.transformer", "forward"),
    }
    for module in ("activation", "transformer"):
        text = (TORCH / "nn" / "modules" / f"{module}.py").read_text()
        assert text.count("has_torch_function(") == text.count("overrides.has_torch_function(") > 0


# Functions of torch.nn that ask whether they are compiled, by what the answer decides.
DECIDES = {
    "torch.nn.modules.activation": "MultiheadAttention runs as one op",
    "torch.nn.modules.transformer": "TransformerEncoder nests what is padded",
    "torch.nn.modules.module": "hooks that are always called: tracing needs dynamo's answer",
    "torch.nn.functional": "memory for a second backward; a decomposition: the same results",
    "torch.nn.attention.flex_attention": "how closures and warnings are traced",
    "torch.nn.parallel.distributed": "what is set up in the first forward",
}


def test_all_of_torchs_modules_that_ask_whether_they_are_traced_are_known() -> None:
    questions = {"is_compiling", "is_dynamo_compiling", "_is_make_fx_tracing"}
    asking = {module for module, _, names in askers("nn") if names & questions}
    assert asking <= DECIDES.keys()
    assert asking >= PATHS_BY_TRACING
