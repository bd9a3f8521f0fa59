"""A dropout stays active in evaluation."""

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#33844",
    "hugging face",
    Guilty(("dropout",), near=("*drop*", "add", "*ln_1*")),
    "two forwards in evaluation differ",
    needs={"transformers": "5.22"},
    planted=True,
    held_out=True,
)


@torch.no_grad()
def infer(drops: bool) -> list[Tensor]:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = seeded(GPT2LMHeadModel(config)).eval()
    if drops:
        model.get_submodule("transformer.drop").train()
    return [model(tokens(2, 8)).logits]


def run() -> list[Tensor]:
    return infer(drops=True)
