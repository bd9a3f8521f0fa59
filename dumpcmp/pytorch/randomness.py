"""The state of every random generator that a program may draw from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Randomness:
    """The state of all generators at one moment: torch's, and unless left out the others'."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    python: Any = None
    numpy: Any = None

    @staticmethod
    def now(*, torch_only: bool = False) -> Randomness:
        """The present state; `torch_only` is for compiled graphs, which draw from no other."""
        if torch_only:
            return Randomness(torch.get_rng_state(), _cuda_states())
        others = random.getstate(), np.random.get_state()
        return Randomness(torch.get_rng_state(), _cuda_states(), *others)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if cuda := self._on_gpus():
            torch.cuda.set_rng_state_all(list(cuda))
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)

    def drawn_since(self) -> bool:
        """Whether torch's generators have given numbers since this state."""
        now = (torch.get_rng_state(), *_cuda_states())
        return not all(map(torch.equal, (self.cpu, *self._on_gpus()), now))

    def _on_gpus(self) -> tuple[Tensor, ...]:
        """The states of GPUs; where they came into use since: as torch makes them from its seed."""
        if self.cuda or not (num_new := len(_cuda_states())):
            return self.cuda
        generator = torch.Generator()
        generator.set_state(self.cpu)
        new = torch.Generator("cuda").manual_seed(generator.initial_seed())
        return (new.get_state(),) * num_new


@contextmanager
def same_randomness() -> Iterator[Callable[[], bool]]:
    """Yield a function that rewinds all generators, and says whether numbers had been drawn.

    After the block they are as they were before it.
    """
    start = Randomness.now()

    def again() -> bool:
        drawn = start.drawn_since()
        start.restore()
        return drawn

    try:
        yield again
    finally:
        start.restore()


def _cuda_states() -> tuple[Tensor, ...]:
    """Of GPUs in use: asking for others would start CUDA, which no forked child can use."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return tuple(torch.cuda.get_rng_state_all()) if is_used else ()
