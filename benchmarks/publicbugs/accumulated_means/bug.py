"""Gradient accumulation averages the means of microbatches that have unequal token counts."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#34191",
    "hugging face",
    Guilty(("cross_entropy", "div", "truediv", "grad*", "mul", "*loss*"), near=("sum", "lm_head*")),
    "gradients are not those of the whole batch",
    needs={"transformers": "5.22"},
    trains=True,
    planted=True,
)


def tiny() -> nn.Module:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    return seeded(LlamaForCausalLM(config))


def batch() -> tuple[Tensor, Tensor]:
    ids = tokens(2, 8)
    labels = ids.clone()
    labels[1, 3:] = -100
    return ids, labels


def train(counts: bool) -> list[Tensor]:
    model, (ids, labels) = tiny(), batch()
    count = int((labels[:, 1:] != -100).sum())
    for row in range(2):  # microbatches
        part = {"input_ids": ids[row : row + 1], "labels": labels[row : row + 1]}
        if counts:
            model(**part, num_items_in_batch=torch.tensor(count)).loss.backward()
        else:
            (model(**part).loss / 2).backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


def run() -> list[Tensor]:
    return train(counts=False)
