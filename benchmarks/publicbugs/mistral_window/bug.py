"""Mistral's attention by PyTorch ignores the sliding window."""

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM
from transformers.models.mistral import modeling_mistral

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#28980",
    "hugging face",
    Guilty(("scaled_dot_product_attention", "*mask*", "softmax", "add"), "*layers.0.self_attn*"),
    "logits of tokens behind the window are others",
    needs={"transformers": "5.22"},
    planted=True,
    held_out=True,
)


@torch.no_grad()
def infer(attention: str) -> list[Tensor]:
    config = MistralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=4,
        attn_implementation=attention,
    )  # fmt: skip
    model = seeded(MistralForCausalLM(config)).eval()
    return [model(tokens(2, 9), use_cache=False).logits]


def run() -> list[Tensor]:
    right = modeling_mistral.create_sliding_window_causal_mask
    modeling_mistral.create_sliding_window_causal_mask = modeling_mistral.create_causal_mask
    try:
        return infer("sdpa")
    finally:
        modeling_mistral.create_sliding_window_causal_mask = right
