"""A cache that is reordered for beams takes its values from its keys."""

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#34232",
    "hugging face",
    Guilty(
        ("index_select", "getitem", "cat", "scaled_dot_product_attention", "input*"),
        near=("*self_attn*",),
        step=1,
    ),
    "the token after the reordering has other logits",
    needs={"transformers": "5.22"},
    planted=True,
)


def tiny() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    return seeded(LlamaForCausalLM(config)).eval()


def reorder(cache: DynamicCache, beams: Tensor, confuses: bool) -> None:
    for layer in cache.layers:
        keys, values = layer.keys, layer.values
        layer.keys = keys.index_select(0, beams)
        layer.values = (keys if confuses else values).index_select(0, beams)


@torch.no_grad()
def infer(confuses: bool) -> list[Tensor]:
    model, ids, cache = tiny(), tokens(2, 6), DynamicCache()
    first = model(ids, past_key_values=cache).logits
    beams = torch.tensor([1, 0])
    reorder(cache, beams, confuses)
    return [first, model(first[:, -1:].argmax(-1)[beams], past_key_values=cache).logits]


def run() -> list[Tensor]:
    return infer(confuses=True)
