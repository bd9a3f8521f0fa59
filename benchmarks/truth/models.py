"""The models of the truth table, with random weights and inputs, and how a step of them is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.truth import written

Inputs = dict[str, Tensor]
VOCABULARY, BATCH, LENGTH, WIDTH = 64, 2, 16, 64
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the corpus: how it is built, what it is given, and what its loss is."""

    name: str
    kind: str  # "attention", "mixture", "scan", "conv", "recurrent" or "scatter"
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    squares: bool = False  # the loss is the mean of squares, whose gradient here all but cancels

    def made(self, dtype: str, device: str = "cpu") -> nn.Module:
        """The model in `dtype`, with weights that no initialisation left at zero or one."""
        torch.manual_seed(5)
        model = self.build()
        generator = torch.Generator().manual_seed(6)
        for parameter in model.parameters():
            if parameter.ndim < 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data += 0.1 * noise.to(parameter.dtype)
        return _ready(model.to(device, getattr(torch, dtype)))

    def given(self, dtype: str, device: str = "cpu") -> Inputs:
        """What a step is called with: the same numbers on every device."""
        torch.manual_seed(7)
        kinds = {True: getattr(torch, dtype), False: None}
        found = self.inputs().items()
        return {name: x.to(device, kinds[x.is_floating_point()]) for name, x in found}

    def step(self, model: nn.Module, inputs: Inputs, backward: bool) -> None:
        """One forward pass, and one backward pass from a loss."""
        with torch.set_grad_enabled(backward):
            out = first_tensor(model(**inputs))
        if backward:
            self.loss(out).backward()  # type: ignore[no-untyped-call]

    def loss(self, out: Tensor) -> Tensor:
        wide = out.float()
        if self.squares:
            return wide.square().mean() * 64
        generator = torch.Generator().manual_seed(8)
        cotangent = torch.randn(out.shape, generator=generator).to(out.device)
        return (wide * cotangent).sum() / 8


def _ready(model: nn.Module) -> nn.Module:
    """The model in inference, but for its recurrent parts: cuDNN differentiates no others."""
    for module in model.eval().modules():
        if isinstance(module, nn.RNNBase):
            module.train()
    return model


def first_tensor(value: Any) -> Tensor:
    """The first tensor of what a model returns."""
    if isinstance(value, Tensor):
        return value
    return first_tensor(next(iter(value.values() if isinstance(value, dict) else value)))


# What the models are given


def tokens() -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def plain_tokens() -> Inputs:
    return {"tokens": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def both_tokens() -> Inputs:
    return {**tokens(), "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def pixels() -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16)}


def image() -> Inputs:
    return {"image": torch.randn(BATCH, 3, 16, 16)}


def vectors() -> Inputs:
    return {"x": torch.randn(BATCH, LENGTH, WIDTH)}


def graph(nodes: int = 32, edges: int = 96) -> Inputs:
    pairs = torch.randint(0, nodes, (2, edges))
    pairs = torch.cat([pairs, torch.arange(nodes).repeat(2, 1)], 1)
    graphs = torch.arange(nodes) % 4
    return {"x": torch.randn(nodes, WIDTH), "edges": pairs, "graphs": graphs}


# Models of transformers, at their smallest


@dataclass(frozen=True)
class Hugging:
    """The class `name` of transformers, built from its `config` with `options`."""

    name: str
    config: str
    options: dict[str, Any]

    def __call__(self) -> nn.Module:
        import transformers

        made = getattr(transformers, self.config)(**self.options)
        model: nn.Module = getattr(transformers, self.name)(made)
        return model


def hugging(name: str, config: str, **options: Any) -> Hugging:
    return Hugging(name, config, options)


DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip

MODELS = {
    model.name: model
    for model in (
        Model("Llama", "attention", hugging("LlamaForCausalLM", "LlamaConfig", **DECODER), tokens),
        Model("Qwen3-MoE", "mixture",
              hugging("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **DECODER, head_dim=16,
                      num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48), tokens),
        Model("Mixtral", "mixture",
              hugging("MixtralForCausalLM", "MixtralConfig", **DECODER, num_local_experts=4),
              tokens),
        Model("GPT-2", "attention",
              hugging("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=WIDTH,
                      n_layer=2, n_head=4, n_positions=64, use_cache=False, resid_pdrop=0.0,
                      embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"), tokens),
        Model("BERT", "attention",
              hugging("BertModel", "BertConfig", vocab_size=VOCABULARY, **ENCODER,
                      max_position_embeddings=64), tokens, squares=True),
        Model("Gemma-2", "attention",
              hugging("Gemma2ForCausalLM", "Gemma2Config", **DECODER, head_dim=16,
                      query_pre_attn_scalar=16, sliding_window=8, attn_implementation="eager"),
              tokens),
        Model("Mamba", "scan",
              hugging("MambaForCausalLM", "MambaConfig", vocab_size=VOCABULARY, hidden_size=WIDTH,
                      state_size=8, num_hidden_layers=2, use_cache=False), tokens),
        Model("ViT", "attention",
              hugging("ViTModel", "ViTConfig", **ENCODER, image_size=16, patch_size=4),
              pixels, squares=True),
        Model("T5", "attention",
              hugging("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY,
                      d_model=WIDTH, d_ff=96, d_kv=16, num_layers=2, num_heads=4,
                      dropout_rate=0.0, use_cache=False), both_tokens),
        Model("conv net", "conv", written.ConvNet, image),
        Model("LSTM and gates", "recurrent", written.Recurrent, plain_tokens),
        Model("MoE decoder", "mixture", written.MixtureDecoder, plain_tokens),
        Model("U-Net", "conv", written.UNet, image),
        Model("graph attention", "scatter", written.Graph, graph),
        Model("state space", "scan", written.StateSpace, plain_tokens),
        Model("cancelling", "attention", written.Cancelling, vectors),
    )
}  # fmt: skip
