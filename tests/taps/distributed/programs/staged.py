"""Pipelines: GPipe, one forward and one backward, interleaved stages, stages from torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from tests.taps.distributed.programs.decoder import Decoder, loss_of, plant, samples
from tests.taps.distributed.programs.scenarios import Capture

_CPU = torch.device("cpu")


def pipeline(
    capture: Capture,
    schedule: str = "ScheduleGPipe",
    steps: int = 1,
    fault: str = "",
    placed: Callable[[nn.Module], object] | None = None,
) -> None:
    """Two stages on two ranks, two microbatches; `placed` puts a stage where it computes."""
    rank = dist.get_rank()
    model = Decoder(layers=range(rank, rank + 1), first=rank == 0, last=rank == 1)
    plant(model, fault)
    if placed is not None:
        placed(model)
    stage = PipelineStage(model, rank, 2, _CPU)
    words: dict[str, Any] = {"scale_grads": False} if fault == "unscaled" else {}
    made = getattr(pipelining, schedule)(stage, n_microbatches=2, loss_fn=loss_of, **words)
    _step(capture, made, steps, [model], fault)


def copying(capture: Capture, fault: str = "") -> None:
    """Stages that copy what they are sent and what they send, as from a host to its device."""
    wrong = 0.25 if fault and dist.get_rank() == 1 else 0.0

    def placed(model: nn.Module) -> None:
        model.register_forward_pre_hook(lambda _, args: (_Copy.apply(args[0], wrong),))  # type: ignore[no-untyped-call]
        model.register_forward_hook(lambda *taken: _Copy.apply(taken[2], 0.0))  # type: ignore[no-untyped-call]

    pipeline(capture, placed=placed)


class _Copy(torch.autograd.Function):
    """A copy whose gradient is a copy, too; `wrong` is what it is too large by."""

    @staticmethod
    def forward(ctx: Any, x: Any, wrong: float) -> Any:
        return x.mul(1 + wrong) if wrong else x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].clone(), None


def interleaved(capture: Capture, fault: str = "") -> None:
    """Four stages on two ranks: embedding and the second layer on one, the rest on the other."""
    rank = dist.get_rank()
    parts: list[Callable[[], nn.Module]] = [
        lambda: Decoder(layers=range(0), last=False),
        lambda: Decoder(layers=range(1), first=False, last=False),
        lambda: Decoder(layers=range(1, 2), first=False, last=False),
        lambda: Decoder(layers=range(0), first=False),
    ]
    numbers = (rank, rank + 2)
    models = [parts[number]() for number in numbers]
    for model in models:
        plant(model, fault)
    stages: list[Any] = [
        PipelineStage(model, number, 4, _CPU) for number, model in zip(numbers, models, strict=True)
    ]
    schedule = pipelining.ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=loss_of)
    _step(capture, schedule, 1, models, fault)


def exported(capture: Capture, fault: str = "") -> None:
    """Stages cut out of the whole model by torch.export."""
    rank = dist.get_rank()
    model = Decoder()
    plant(model, fault)
    ids, _ = samples()
    split = {"layers.1": pipelining.SplitPoint.BEGINNING}
    pipe = pipelining.pipeline(model, (ids[:2],), split_spec=split)
    stage = pipe.build_stage(rank, _CPU)
    schedule = pipelining.ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
    _step(capture, schedule, 1, [], fault)


def _step(capture: Capture, schedule: Any, steps: int, models: list[nn.Module], fault: str) -> None:
    ids, labels = samples()
    if fault == "order":
        ids = ids.roll(len(ids) // 2, 0)
    if fault == "labels":
        labels = labels.roll(len(labels) // 2, 0)
    weights = [parameter for model in models for parameter in model.parameters()]
    optimiser = torch.optim.SGD(weights, lr=0.1) if steps > 1 else None
    with capture():
        torch.manual_seed(0)
        for _ in range(steps):
            if dist.get_rank() == 0:
                schedule.step(ids)
            else:
                schedule.step(target=labels)
            if optimiser is not None:
                optimiser.step()
                optimiser.zero_grad()


def whole(capture: Capture, steps: int = 1) -> None:
    """The model on one rank, for as many steps."""
    model = Decoder()
    ids, labels = samples()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture():
        torch.manual_seed(0)
        for _ in range(steps):
            loss_of(model(ids), labels).backward()  # type: ignore[no-untyped-call]
            if steps > 1:
                optimiser.step()
                optimiser.zero_grad()
