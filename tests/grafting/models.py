"""A small model with an expert choice, and faults that are put into it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dumpcmp.dumping.programs import dump
from dumpcmp.faults import Fault, on_output, planted, scale

WIDTH = 16


class Layer(nn.Module):
    """A norm, two linears with something between, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 24),
            nn.Linear(24, WIDTH),
        )
        self.between: Callable[[Tensor], Tensor] = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.down(self.between(self.up(self.norm(x))))
        return mixed


class Chain(nn.Module):
    """Layers, a choice among the channels, and a head."""

    def __init__(self, num_layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        scores, places = x.topk(4, -1)
        given: Tensor = self.head(x.scatter(-1, places, scores.softmax(-1)))
        return given


Change = Callable[[Chain], AbstractContextManager[Any]]


def wrong_kernel(module: str, function: str = "linear") -> Change:
    return lambda model: planted(model, Fault("", module, function, on_output(scale)))


def edited(edit: Callable[[Chain], None]) -> Change:
    @contextmanager
    def change(model: Chain) -> Any:
        edit(model)
        yield

    return change


def other_function(layer: int) -> Change:
    return edited(lambda model: setattr(model.layers[layer], "between", F.silu))


def left_out(layer: int) -> Change:
    return edited(lambda model: setattr(model.layers[layer], "between", lambda x: x))


def other_weight(layer: int) -> Change:
    def spoil(model: Chain) -> None:
        weight = model.get_parameter(f"layers.{layer}.up.weight")
        weight.data[3] *= -1

    return edited(spoil)


def program(*changes: Change, trains: bool = False, num_layers: int = 3) -> Callable[[], None]:
    """Runs the model twice, or trains it once, with faults."""

    def run() -> None:
        torch.manual_seed(3)
        model = Chain(num_layers)
        draws = torch.Generator().manual_seed(4)
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change(model))
            for _ in range(1 if trains else 2):
                with torch.set_grad_enabled(trains):
                    result = model(torch.randn(2, 3, WIDTH, generator=draws))
                if trains:
                    result.square().sum().backward()

    return run


def dumped(path: Path, *changes: Change, trains: bool = False, num_layers: int = 3) -> Path:
    run = program(*changes, trains=trains, num_layers=num_layers)
    made = dump(run, path, backward=trains)
    assert made.error is None
    return path
