"""Qwen2's eager attention sees tokens outside of the sliding window."""

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2 import modeling_qwen2

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#35924",
    "hugging face",
    Guilty(
        ("add", "softmax", "*mask*", "scaled_dot_product_attention", "matmul"),
        "*layers.0.self_attn*",
    ),
    "logits of tokens behind the window are others",
    needs={"transformers": "5.22"},
    planted=True,
)


def model_with(attention: str) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True, sliding_window=3,
        max_window_layers=0, attn_implementation=attention,
    )  # fmt: skip
    return seeded(Qwen2ForCausalLM(config)).eval()


@torch.no_grad()
def infer(attention: str) -> list[Tensor]:
    return [model_with(attention)(tokens(2, 8), use_cache=False).logits]


def run() -> list[Tensor]:
    right = modeling_qwen2.create_sliding_window_causal_mask
    modeling_qwen2.create_sliding_window_causal_mask = modeling_qwen2.create_causal_mask
    try:
        return infer("eager")
    finally:
        modeling_qwen2.create_sliding_window_causal_mask = right
