"""A resumed run does not load the optimizer's state: Adam starts from zero moments."""

import copy

import torch.nn.functional as F
from torch import Tensor, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights

BUG = Bug(
    "NVIDIA-NeMo/Automodel#763",
    "training",
    Guilty(("step", "param*", "exp_avg*", "state*", "*optimizer*"), step=2),
    "the weights after the third step are others than without the interruption",
    trains=True,
    planted=True,
)


def train(loads: bool) -> list[Tensor]:
    model = seeded(Mlp())
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        if step == 2:  # interrupted, and resumed from a checkpoint
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = optim.Adam(model.parameters(), lr=0.01)
            if loads:
                optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(loads=False)
