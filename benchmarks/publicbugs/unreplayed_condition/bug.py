"""What the condition of a loop writes to an input is not written when compiled."""

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#195327",
    "compiled",
    Guilty(("while_loop", "add*", "copy_", "inputs"), near=("clone",)),
    "compiled, the state is written to once and not five times",
    held_out=True,
)


def program(state: Tensor, x: Tensor) -> Tensor:
    state.add_(1)

    def goes_on(count: Tensor, _: Tensor) -> Tensor:
        state.add_(1)
        return count < 3

    def body(count: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, value + 1

    start = torch.tensor(0), x
    _, out = while_loop(goes_on, body, start)  # type: ignore[no-untyped-call]
    return out  # type: ignore[no-any-return]


def run() -> list[Tensor]:
    state = torch.zeros(3)
    with torch.no_grad():
        out = torch.compile(program)(state, torch.ones(2))
    return [state, out]
