"""A parameter that is replaced after DDP has wrapped the model is no longer averaged."""

from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights
from benchmarks.publicbugs.ranks import mine, world

BUG = Bug(
    "pytorch/pytorch#104336",
    "parallel",
    Guilty(("grad*", "param*", "step", "linear", "all_reduce", "backward"), "*up*"),
    "the replaced weight differs between ranks after a step",
    ranks=2,
    trains=True,
    planted=True,
)


def train(replaces_late: bool) -> list[Tensor]:
    model = seeded(Mlp())
    assert isinstance(model, Mlp)
    wrapped: nn.Module = model
    if not replaces_late:
        model.up.weight = nn.Parameter(model.up.weight.detach().clone())
    if world() > 1:
        wrapped = DistributedDataParallel(model)
    if replaces_late:
        model.up.weight = nn.Parameter(model.up.weight.detach().clone())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(1):
        optimizer.zero_grad()
        out = wrapped(mine(numbers(4, 8, seed=step)))
        (out - mine(numbers(4, 8, seed=step + 9))).square().mean().backward()
        optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(replaces_late=True)
