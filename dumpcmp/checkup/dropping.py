"""What a dropout drew, found out by having it draw once more from the same state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.randomness import Randomness
from dumpcmp.replay.backward import DRAWN
from dumpcmp.taps.recording.functions import Function


@dataclass(frozen=True, slots=True)
class Draw:
    """A call of a dropout that is about to run, and the state that it draws from."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    before: Randomness

    @classmethod
    def of(
        cls, function: Function, func: Callable[..., Any], args: Any, kwargs: Any
    ) -> Draw | None:
        """The draw of this call; None where it drops nothing, or does more than that."""
        plain = "dropout" in function.name and "alpha" not in function.name
        if not plain or not function.draws(args, kwargs):
            return None
        return cls(func, tuple(args), kwargs, Randomness.now(torch_only=True))

    def kept(self, taken: Tensor, gave: Tensor) -> dict[str, Tensor]:
        """What it keeps of ones, beside what it took; nothing where `gave` shows another draw.

        Whether an element was kept can be read off what it `gave` only where that is not zero.
        """
        after = Randomness.now(torch_only=True)
        self.before.restore()
        ones = torch.ones_like(taken)
        given = iter((ones,))
        args = [next(given, leaf) if isinstance(leaf, Tensor) else leaf for leaf in self.args]
        words = {
            word: next(given, leaf) if isinstance(leaf, Tensor) else leaf
            for word, leaf in self.kwargs.items()
        }
        drawn = self.func(*args, **words)
        after.restore()
        is_same = torch.equal((drawn != 0) & (taken != 0), gave != 0)
        return {DRAWN: drawn} if is_same else {}
