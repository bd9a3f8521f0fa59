"""Hugging Face models from a config: no false failure when compiled, and a fault has a name."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from dumpcmp import (
    AutomaticValueChecker,
    Fp64Checker,
    RoundingChecker,
    VerificationError,
    VerifyConfig,
    explain,
    verify,
)
from tests.choosing_cases import often

transformers = pytest.importorskip("transformers")

IDS = (torch.arange(32) * 37 % 128).reshape(2, 16)
INPUTS = {"input_ids": IDS, "labels": IDS}


def llama(layers: int = 2) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2(layers: int = 2) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=layers, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def made(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return build().to(dtype).eval()


CASES = [
    pytest.param(llama, torch.bfloat16, "inductor", marks=pytest.mark.long),
    pytest.param(llama, torch.float32, "aot_eager", marks=pytest.mark.long),
    (llama, torch.bfloat16, "aot_eager"),
    pytest.param(gpt2, torch.bfloat16, "aot_eager", marks=pytest.mark.long),
    pytest.param(gpt2, torch.float32, "aot_eager", marks=pytest.mark.long),
]
CHECKERS = AutomaticValueChecker(), RoundingChecker(), Fp64Checker()


@pytest.mark.parametrize("build, dtype, backend", CASES)
def test_a_compiled_model_passes_forward_and_backward(
    build: Any, dtype: torch.dtype, backend: str
) -> None:
    torch._dynamo.reset()
    model = made(partial(build, layers=1), dtype)
    compiled = torch.compile(model, backend=backend)
    for checker in CHECKERS:  # the second and third find everything compiled
        config = VerifyConfig(value_checker=checker, backward=True)
        report = verify(INPUTS, model, compiled, config)
        slots = [row.key.slot for row in report.rows]
        assert {"output.loss", "output.logits"} <= set(slots)
        assert "output.past_key_values.layers.0.keys" in slots
        assert sum(slot.startswith("grad.") for slot in slots) == len(list(model.parameters()))


def scaled(module: nn.Module, factor: float) -> None:
    module.register_forward_hook(lambda _, args, output: output * factor)


def without_a_head(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda _, args: (args[0] * (torch.arange(64) >= 16),))


FAULTS: dict[str, tuple[Callable[[], nn.Module], str, Callable[[nn.Module], None]]] = {
    "a scaled projection": (llama, "model.layers.1.mlp.up_proj", lambda m: scaled(m, 1.01)),
    "a dropped head": (llama, "model.layers.0.self_attn.o_proj", without_a_head),
    "a scaled output": (gpt2, "transformer.h.1.mlp.c_proj", lambda m: scaled(m, 1.01)),
}


@pytest.mark.parametrize("fault", often(FAULTS, "a dropped head"))
def test_a_planted_fault_is_caught_and_its_op_is_named(fault: str) -> None:
    build, place, plant = FAULTS[fault]
    model = made(build, torch.float32)
    wrong = copy.deepcopy(model)
    plant(wrong.get_submodule(place))
    config = VerifyConfig(value_checker=RoundingChecker())
    with pytest.raises(VerificationError, match=r"output\.logits: FAIL"):
        verify(INPUTS, model, wrong, config)
    explanation = explain(INPUTS, model, wrong)
    assert explanation.op.partition("/")[0] == place
