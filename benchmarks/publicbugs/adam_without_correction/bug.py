"""AdamW leaves out the correction of its moments for their start at zero."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, optim
from torch.optim.optimizer import ParamsT

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights

BUG = Bug(
    "ml-explore/mlx#1640",
    "training",
    Guilty(("step", "param*", "div", "addcdiv", "mul", "sqrt"), step=0),
    "the first step is three times as long as its learning rate",
    trains=True,
    planted=True,
)


class AdamW(optim.Optimizer):
    def __init__(self, params: ParamsT, corrects: bool) -> None:
        super().__init__(params, {"lr": 0.01, "corrects": corrects})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for one in group["params"]:
                self._update(one, group)

    def _update(self, one: Tensor, group: dict[str, float]) -> None:
        state = self.state[one]
        if not state:
            state |= {"step": 0, "m": torch.zeros_like(one), "v": torch.zeros_like(one)}
        assert one.grad is not None
        state["step"] += 1
        state["m"].lerp_(one.grad, 0.1)
        state["v"].mul_(0.999).addcmul_(one.grad, one.grad, value=0.001)
        first, second = state["m"], state["v"]
        if group["corrects"]:
            first = first / (1 - 0.9 ** state["step"])
            second = second / (1 - 0.999 ** state["step"])
        one.mul_(1 - group["lr"] * 0.01)
        one.addcdiv_(first, second.sqrt() + 1e-8, value=-group["lr"])


def train(optimizer_of: type[optim.Optimizer], **settings: Any) -> list[Tensor]:
    model = seeded(Mlp())
    optimizer = optimizer_of(model.parameters(), **settings)
    for step in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(AdamW, corrects=False)
