"""FSDP1 with its parameters under their own names, with a capture and without: me DIRECTORY."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from dumpcmp.dumping.capturing import capture

STEPS, ROWS = 2, 3
Capture = Callable[[nn.Module], AbstractContextManager[Any]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), inner)


def samples(rank: int) -> list[Tensor]:
    """What a rank gets in each step."""
    return list(torch.randn(STEPS, ROWS, 8, generator=torch.Generator().manual_seed(rank)))


def train(model: nn.Module, batches: list[Tensor], divisor: int, capture: Capture) -> list[Tensor]:
    """The parameters after as many steps as there are batches."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(model):
        for batch in batches:
            loss: Any = model(batch).square().sum() / divisor
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def sharded() -> nn.Module:
    """One unit inside of another: the inner one's parameters are gathered when it is called."""
    model = network()
    options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": True}
    model[2] = FullyShardedDataParallel(model[2], **options)
    return FullyShardedDataParallel(model, **options)


def _captured(path: Path, mode: str, model: nn.Module) -> AbstractContextManager[Any]:
    return capture(model, path, mode=mode, backward=True)


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    batches = samples(dist.get_rank())
    plain = train(sharded(), batches, 1, lambda model: nullcontext())
    for mode in ("eager", "aten"):
        seen = train(sharded(), batches, 1, partial(_captured, directory / mode, mode))
        assert all(map(torch.equal, plain, seen)), f"{mode}: another run than without a capture"
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
