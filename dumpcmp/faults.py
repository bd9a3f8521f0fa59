"""Plants faults into a running model, below what a capture sees: the same op, a wrong result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Gives the wrong result of a function, from the function itself and its arguments.
Tamper = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A function that gives a wrong result: which one, in which module, and how."""

    name: str
    module: str  # "layers.1.mlp.down_proj"; empty: the root
    function: str  # "linear"
    tamper: Tamper
    call: int = 0  # nth call of the function within the module's call
    step: int = 0  # first call of the module that is hit; all later ones are

    @property
    def op(self) -> str:
        """The op as captures name it."""
        return f"{self.module or '<root>'}/{self.function}"


def on_output(change: Callable[[Tensor], None]) -> Tamper:
    """Tamper with the output: `change` writes into a copy of it."""

    def tamper(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        output: Tensor = func(*args, **kwargs).clone()
        change(output)
        return output

    return tamper


@contextmanager
def planted(model: nn.Module, fault: Fault) -> Iterator[None]:
    """Let `fault` strike while the block runs. Enter it before the capture."""
    mode = _FaultMode(fault)
    module = model.get_submodule(fault.module)
    handles = (
        module.register_forward_pre_hook(lambda *_: mode.enter()),
        module.register_forward_hook(lambda *_: mode.leave(), always_call=True),
    )
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _FaultMode(TorchFunctionMode):
    """Watches for the one call that is to go wrong."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.num_entered = 0
        self.inside = False
        self.num_calls = 0

    def enter(self) -> None:
        self.inside = self.num_entered >= self.fault.step
        self.num_entered += 1
        self.num_calls = 0

    def leave(self) -> None:
        self.inside = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not (self.inside and _name(func) == self.fault.function):
            return func(*args, **kwargs)
        self.num_calls += 1
        if self.num_calls - 1 != self.fault.call:
            return func(*args, **kwargs)
        return self.fault.tamper(func, args, kwargs)


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", "")).strip("_")


# What goes wrong, as writes into an output of shape [batch, tokens, channels].


def scale(output: Tensor) -> None:
    """All of it is 1 % too large."""
    output.mul_(1.01)


def zero_channel(output: Tensor) -> None:
    """One channel is zero."""
    output[..., 7] = 0


def flip_channel(output: Tensor) -> None:
    """One channel has the wrong sign."""
    output[..., 7] *= -1


def wrong_token(output: Tensor) -> None:
    """One token of many has the vector of another."""
    if output.shape[1] > 3:
        output[:, -2] = output[:, 1]


def swap_tokens(output: Tensor) -> None:
    """Two tokens of many have each other's vectors."""
    if output.shape[1] > 3:
        output[:, [1, -2]] = output[:, [-2, 1]]


def one_nan(output: Tensor) -> None:
    """One element is NaN."""
    output[..., -1, 5] = torch.nan
