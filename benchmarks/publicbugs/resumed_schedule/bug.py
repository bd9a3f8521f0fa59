"""A resumed run makes its scheduler anew, which sets the learning rate back to the first."""

import torch.nn.functional as F
from torch import Tensor, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights

BUG = Bug(
    "ultralytics/yolov5#292",
    "training",
    Guilty(("step", "param*", "*lr*", "*optimizer*"), step=2),
    "the third step is four times as long",
    trains=True,
    planted=True,
    held_out=True,
)


def train(resumes: bool, restores: bool) -> list[Tensor]:
    model = seeded(Mlp())
    optimizer = optim.SGD(model.parameters(), lr=0.2)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(4):
        if step == 2 and resumes:
            saved, kept = optimizer.state_dict(), scheduler.state_dict()
            optimizer = optim.SGD(model.parameters(), lr=0.2)
            if restores:
                optimizer.load_state_dict(saved)
            scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            if restores:
                scheduler.load_state_dict(kept)
                optimizer.param_groups[0]["lr"] = scheduler.get_last_lr()[0]
        optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(resumes=True, restores=False)
