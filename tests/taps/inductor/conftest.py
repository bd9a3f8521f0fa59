"""Compiled on one thread, and golden runs that are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dumpcmp
from tests.taps.inductor.models import net


@pytest.fixture(scope="session", autouse=True)
def _on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(model: Callable[..., Any], x: torch.Tensor, backward: bool = False) -> torch.Tensor:
    """One inference, or one training step."""
    with torch.set_grad_enabled(backward):
        out: torch.Tensor = model(x)
    if backward:
        out.square().sum().backward()  # type: ignore[no-untyped-call]
    return out


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Eager dumps of a Net, without and with gradients."""
    made: dict[bool, Path] = {}

    def dump(backward: bool = False) -> Path:
        if backward not in made:
            made[backward] = tmp_path_factory.mktemp("golden") / "d"
            model, x = net()
            with dumpcmp.capture(model, made[backward], backward=backward):
                run(model, x, backward)
        return made[backward]

    return dump
