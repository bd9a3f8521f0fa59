"""All layers are frozen, not only the backbone: the head is not trained."""

import torch.nn.functional as F
from torch import Tensor, nn, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights

BUG = Bug(
    "https://discuss.pytorch.org/t/84911",
    "training",
    Guilty(
        ("grad*", "param*", "step", "backward", "requires_grad"), "head*", near=("scale*", "mul")
    ),
    "the head's weights are those of the start",
    trains=True,
    planted=True,
)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Mlp(), nn.Linear(8, 4)
        self.scale = nn.Parameter(numbers(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x)) * self.scale
        return out


def train(freezes_head: bool) -> list[Tensor]:
    model = seeded(Classifier())
    assert isinstance(model, Classifier)
    model.backbone.requires_grad_(False)
    model.head.requires_grad_(not freezes_head)
    optimizer = optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 4, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(freezes_head=True)
