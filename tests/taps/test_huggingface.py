"""Hugging Face models with random weights: eager and FX name the same ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.selection import make_tap
from dumpcmp.taps.modes.graph import GraphCapture
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder
from tests.choosing_cases import long
from tests.taps.memory import MemorySink

transformers = pytest.importorskip("transformers")
TOKENS = torch.arange(10)[None]


def llama(layers: int = 1) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2(layers: int = 1) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=layers, n_head=4, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def train(model: nn.Module) -> list[torch.Tensor]:
    out = model(input_ids=TOKENS, labels=TOKENS)
    out.loss.backward()
    return [out.logits.detach(), *(p.grad for p in model.parameters())]


def generate(model: nn.Module) -> list[torch.Tensor]:
    options = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0}
    return [model.generate(TOKENS, **options)]  # type: ignore[operator]


Build = Callable[[], nn.Module]
Use = Callable[[nn.Module], list[torch.Tensor]]


def seen(mode: type[ModuleCapture], build: Build, run: Use) -> MemorySink:
    torch.manual_seed(0)
    model = build()
    torch.manual_seed(0)
    plain = run(build())
    sink = MemorySink()
    with mode(Recorder(sink, make_tap(backward=True)), [model]).running():
        observed = run(model)
    assert all(map(torch.equal, plain, observed))
    return sink


def ops(sink: MemorySink) -> set[tuple[int, str, int]]:
    return {(call.step, call.op, call.call) for call in sink.calls if "/" in call.op}


# Dynamo takes most of the time, and as long for each layer: two of them at length.
SHARES = [
    (llama, train, 1.0),
    long(partial(llama, 2), train, 1.0),
    long(gpt2, train, 1.0),
    long(partial(llama, 2), generate, 0.98),
    long(gpt2, generate, 0.98),
]
NAMES = ["llama train", "two layers train", "gpt2 train", "llama generate", "gpt2 generate"]


@pytest.mark.slow
@pytest.mark.parametrize("build, run, share", SHARES, ids=NAMES)
def test_eager_and_fx_agree(build: Build, run: Use, share: float) -> None:
    torch._dynamo.reset()  # what other tests taught it decides where its graphs end
    eager, fx = seen(ModuleCapture, build, run), seen(GraphCapture, build, run)
    alone = ops(eager) - ops(fx), ops(fx) - ops(eager)
    assert len(ops(eager)) > 50
    assert len(ops(eager) & ops(fx)) >= share * len(ops(eager) | ops(fx)), [*map(sorted, alone)]
    shared: set[Key] = {key for key in eager.records.keys() & fx.records.keys() if "/" in key.op}
    # Where dynamo leaves out a getitem, the later ones of that module have other numbers.
    renumbered = {(k.step, k.op) for k in eager.records.keys() ^ fx.records.keys()}
    for key in shared:
        if (key.step, key.op) not in renumbered:
            assert eager.values[key].tobytes() == fx.values[key].tobytes(), str(key)


@pytest.mark.slow
def test_model_outputs_and_keyword_calls_flatten_to_slots() -> None:
    sink = seen(ModuleCapture, partial(llama, 2), train)
    slots = {(key.op, key.slot) for key in sink.records}
    assert {("<root>", "input.input_ids"), ("<root>", "input.labels"), ("<root>", "output.loss"),
            ("<root>", "output.logits"), ("model", "output.last_hidden_state"),
            ("model.layers.0.self_attn", "input.hidden_states"),
            ("model.layers.1.mlp.down_proj", "grad.weight")} <= slots  # fmt: skip
