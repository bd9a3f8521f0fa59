"""Mixtures of experts under benign noise flip and are right; wrong choices are found where made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp.faults import Fault, planted
from dumpcmp.nouns.outcome import Conclusion, Outcome
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import long, often
from tests.comparing.routers import router

Arguments = tuple[Any, ...]


class SplitProducts(TorchFunctionMode):
    """Products as sums of halves: another rounding, and as right."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name == "linear":
            x, weight, *bias = args
            half = x.shape[-1] // 2
            made = x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T
            return made + bias[0] if bias and bias[0] is not None else made
        if name == "matmul" and args[1].ndim == 2:
            x, weight = args
            half = x.shape[-1] // 2
            return x[..., :half] @ weight[:half] + x[..., half:] @ weight[half:]
        return func(*args, **(kwargs or {}))


@contextmanager
def running(fault: Fault | None, model: torch.nn.Module) -> Iterator[None]:
    with torch.no_grad(), planted(model, fault) if fault else nullcontext():
        yield


# The first seed with which tokens go to another expert, or fall on the other side.
FLIPPING = {"looped": 3, "grouped": 7, "dense": 3, "gated": 0}

Golden = Callable[[str], Path]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The golden run of a style, captured once."""

    @cache
    def get(style: str) -> Path:
        path = tmp_path_factory.mktemp(style) / "golden"
        model, ids = router(style, torch.bfloat16, FLIPPING[style])
        with torch.no_grad(), dumpcmp.capture(model, path):
            model(ids)
        return path

    return get


def compared(
    golden: Golden, path: Path, style: str, fault: Fault | None = None, noisy: bool = True
) -> Outcome:
    model, ids = router(style, torch.bfloat16, FLIPPING[style])
    noise = SplitProducts() if noisy else nullcontext()
    with noise, running(fault, model), dumpcmp.capture(model, path):
        model(ids)
    return dumpcmp.compare(golden(style), path)


@pytest.mark.parametrize("style", often(FLIPPING, "looped", "gated"))
def test_benign_noise_flips_and_nothing_is_wrong(
    style: str, golden: Golden, tmp_path: Path
) -> None:
    outcome = compared(golden, tmp_path / "d", style)
    assert outcome.failures == ()
    assert outcome.conclusion is Conclusion.DECISIONS, outcome.headline
    assert outcome.tally[Verdict.INCONCLUSIVE] == 0
    assert outcome.exit_code == 0
    flips = [row for row in outcome.rows if row.verdict is Verdict.FLIP]
    assert any(row.key.op.module.endswith("moe") for row in flips)
    assert any("every op on the way is right: another choice" in row.reason for row in outcome.rows)


def hugging_face(name: str) -> torch.nn.Module:
    """A tiny mixture of experts as transformers has it."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    if name == "Mixtral":
        sizes |= {"num_local_experts": 8}
    else:
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        sizes |= {"head_dim": 8}
    config = getattr(transformers, f"{name}Config")(**sizes)
    model: torch.nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.bfloat16().eval()


def chosen(model: torch.nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    """The experts of every token, as the routers' logits have them."""
    found: list[torch.Tensor] = []

    def see(_module: object, _inputs: object, logits: Any) -> None:
        first = logits[0] if isinstance(logits, tuple) else logits
        found.append(first.topk(2, -1).indices.sort(-1).values)

    gates = [each for name, each in model.named_modules() if name.endswith("mlp.gate")]
    hooks = [gate.register_forward_hook(see) for gate in gates]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    assert found
    return found


def wavering(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A mixture some of whose tokens go elsewhere if sums are split; which, the processor says."""
    for seed in range(1, 100):
        torch.manual_seed(seed)
        model, ids = hugging_face(name), torch.randint(0, 64, (2, 16))
        plain = chosen(model, ids)
        with SplitProducts():
            split = chosen(model, ids)
        if not all(map(torch.equal, plain, split)):
            return model, ids
    raise AssertionError("no token of a hundred models goes elsewhere")


@pytest.mark.parametrize("name", often(["Qwen3Moe", "Mixtral"], "Mixtral"))
def test_the_mixtures_of_transformers_flip_and_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    model, ids = wavering(name)
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "golden"):
        model(ids)
    with torch.no_grad(), SplitProducts(), dumpcmp.capture(model, tmp_path / "target"):
        model(ids)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.conclusion is Conclusion.DECISIONS, outcome.headline
    assert outcome.tally[Verdict.INCONCLUSIVE] == 0
    assert not outcome.failures
    assert any("every op on the way is right: another choice" in row.reason for row in outcome.rows)


def off_by_one(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Every expert is the next one."""
    values, places = func(*args, **kwargs)
    return values, (places + 1) % args[0].shape[-1]


def second_best(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Any:
    """One token is sent to its third expert in place of its second."""
    values, places = func(args[0], 3, *args[2:], **kwargs)
    for found in (values, places):
        found[7, 1] = found[7, 2]
    return values[:, :2].contiguous(), places[:, :2].contiguous()


def unordered(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Any:
    """The right experts of each token, the lesser first."""
    values, places = func(*args, **kwargs)
    return values.flip(-1), places.flip(-1)


def other_values(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Any:
    values, places = func(*args, **kwargs)
    return values * 1.01, places


def one_too_far(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Tensor:
    got: Tensor = func(*args, **kwargs).clone()
    got[3] = ~got[3]
    return got


def swapped(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Tensor:
    """Two rows of different experts stand in each other's place."""
    got: Tensor = func(*args, **kwargs).clone()
    got[[0, -1]] = got[[-1, 0]]
    return got


WRONG = [
    ("looped", "topk", off_by_one),
    long("looped", "topk", second_best),
    ("grouped", "topk", unordered),
    ("grouped", "topk", other_values),
    ("grouped", "argsort", swapped),
    ("gated", "gt", one_too_far),
    long("looped", "eq", one_too_far),
]


def name_of(part: Any) -> str:
    return str(getattr(part, "__name__", part))


@pytest.mark.each_value_once
@pytest.mark.parametrize("noisy", [False, True], ids=["alone", "beside noise"])
@pytest.mark.parametrize("style, function, tamper", WRONG, ids=name_of)
def test_a_wrong_choice_is_found_where_it_was_made(
    style: str, function: str, tamper: Any, noisy: bool, golden: Golden, tmp_path: Path
) -> None:
    fault = Fault(tamper.__name__, "blocks.1.moe", function, tamper)
    outcome = compared(golden, tmp_path / "d", style, fault, noisy)
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first is not None and first.key.op == fault.op, outcome.headline


@pytest.mark.parametrize("style", often(["looped", "grouped"], "grouped"))
def test_a_fault_after_a_flip_is_found_among_the_rows_that_it_touched(
    style: str, golden: Golden, tmp_path: Path
) -> None:
    def louder(func: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Tensor:
        got: Tensor = func(*args, **kwargs) * 1.02
        return got

    fault = Fault("louder", "blocks.1.moe", "gelu", louder, call=3)
    outcome = compared(golden, tmp_path / "d", style, fault)
    first = outcome.first_divergence
    assert first is not None and (first.key.op, first.key.call) == (fault.op, 3), outcome.headline
