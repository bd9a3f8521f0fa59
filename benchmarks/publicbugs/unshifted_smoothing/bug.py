"""With label smoothing the labels of a causal model are not shifted."""

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.trainer_pt_utils import LabelSmoother

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import seeded, tokens

BUG = Bug(
    "huggingface/transformers#17960",
    "hugging face",
    Guilty(
        ("gather", "log_softmax", "getitem", "contiguous", "neg", "sum"), near=("div", "lm_head*")
    ),
    "the loss is that of tokens predicting themselves",
    needs={"transformers": "5.22"},
    trains=True,
    planted=True,
)


class Smoothed(nn.Module):
    """A model with its smoothed loss."""

    def __init__(self, shifts: bool) -> None:
        super().__init__()
        self.shifts = shifts
        config = GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        self.model = seeded(GPT2LMHeadModel(config))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = LabelSmoother(0.1)(self.model(ids), ids, shift_labels=self.shifts)
        return out


def train(shifts: bool) -> list[Tensor]:
    torch.manual_seed(0)
    loss = Smoothed(shifts)(tokens(2, 8))
    loss.backward()
    return [loss.detach()]


def run() -> list[Tensor]:
    return train(shifts=False)
