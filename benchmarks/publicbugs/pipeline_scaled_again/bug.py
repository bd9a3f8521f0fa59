"""A pipeline divides all accumulated gradients by the number of microbatches, in every step."""

from torch import Tensor, distributed, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import rank, world

BUG = Bug(
    "pytorch/torchtitan#1733",
    "parallel",
    Guilty(("div", "truediv", "grad*", "param*", "mul", "itruediv"), near=("linear", "*stage*")),
    "the first accumulation step counts half",
    ranks=2,
    trains=True,
    planted=True,
)
MICROBATCHES = 2


class Stages(nn.Module):
    """Two stages; a rank runs its own and passes values and gradients on."""

    def __init__(self) -> None:
        super().__init__()
        self.stage0, self.stage1 = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stage1(self.stage0(x).tanh())
        return out


def one_microbatch(model: Stages, x: Tensor, y: Tensor, scale: float) -> None:
    if world() == 1:
        ((model(x) - y).square().mean() * scale).backward()
    elif rank() == 0:
        out = model.stage0(x).tanh()
        distributed.send(out.detach(), 1)
        grad = out.new_empty(out.shape)
        distributed.recv(grad, 1)
        out.backward(grad)
    else:
        given = x.new_empty(x.shape[0], 8)
        distributed.recv(given, 0)
        given.requires_grad_()
        ((model.stage1(given) - y).square().mean() * scale).backward()
        assert given.grad is not None
        distributed.send(given.grad, 0)


def train(scales_gradients: bool) -> list[Tensor]:
    model = seeded(Stages())
    assert isinstance(model, Stages)
    for step in range(2):  # of accumulation
        for number in range(MICROBATCHES):
            x, y = (numbers(3, n, seed=10 * step + number + n) for n in (8, 4))
            one_microbatch(model, x, y, 1.0 if scales_gradients else 1 / MICROBATCHES)
        if scales_gradients:
            for one in model.parameters():
                if one.grad is not None:
                    one.grad /= MICROBATCHES
    return whole_gradients(model)


def whole_gradients(model: Stages) -> list[Tensor]:
    grads = []
    for owner, stage in enumerate((model.stage0, model.stage1)):
        for one in stage.parameters():
            grad = one.new_zeros(one.shape) if one.grad is None else one.grad.clone()
            if world() > 1:
                distributed.broadcast(grad, owner)
            grads.append(grad)
    return grads


def run() -> list[Tensor]:
    return train(scales_gradients=True)
