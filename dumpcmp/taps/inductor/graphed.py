"""CUDA graphs of Inductor's own: what they replay is recorded from the same code run beside it.

A replay runs none of the lines that record. So the graph runs as it would, with the tap silent,
and the program goes on with what it gave; then the code that it was captured from runs once
more, kernel by kernel, on the same inputs. It vouches for what the graph computed inside where
it gives all of the graph's outputs, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.pytorch.randomness import Randomness


class Witnesses:
    """What came of the runs beside graphs."""

    def __init__(self) -> None:
        self.same = 0  # that gave what their graph had given
        self.other = 0  # that gave other bits
        self.off = 0  # graphs that were not made

    def facts(self) -> dict[str, Any]:
        """As run.json holds it, where there were graphs."""
        return {"witnessed_graphs": vars(self)} if any(vars(self).values()) else {}

    def remarks(self) -> list[str]:
        """What the user must hear: which graphs gave something else than their own code."""
        told = []
        if self.other:
            runs = counted(self.same + self.other, "run")
            told.append(
                f"{self.other} of {runs} of Inductor's CUDA graphs gave other bits than their "
                "kernels give one by one: what is recorded inside of these graphs is not what they "
                "computed"
            )
        if self.off:
            pieces = counted(self.off, "piece of code runs", "pieces of code run")
            told.append(
                f"{pieces} without the CUDA graph that Inductor would make: "
                f"{plural(self.off, 'it calls', 'they call')} ops that may do more than compute, "
                "and must not run a second time"
            )
        return told

    def note(self, given: Sequence[Any], again: Sequence[Any], unwritten: Iterable[int]) -> None:
        """Hold what a graph gave against what its code gave beside it."""
        left_out = set(unwritten)
        pairs = enumerate(zip(given, again, strict=True))
        agrees = all(have_same_bits(*pair) for i, pair in pairs if i not in left_out)
        self.same += agrees
        self.other += not agrees


def run_beside(
    graph: Callable[[list[Any]], Any],
    silence: Callable[[], AbstractContextManager[None]],
    observe: Callable[[list[Any], Sequence[Any]], Any],
    changed: Iterable[int],
    args: list[Any],
) -> Any:
    """Run `graph` with the tap silent, then have its inputs and outputs observed; its outputs.

    Of the arguments that it has `changed`, the observer is given copies of before.
    """
    written = set(changed)
    inputs = [copy_of(a) if i in written and isinstance(a, Tensor) else a
              for i, a in enumerate(args)]  # fmt: skip
    start = Randomness.now(torch_only=True)
    with silence():
        outputs = graph(args)
    end = Randomness.now(torch_only=True)
    start.restore()
    try:
        observe(inputs, outputs)
    finally:
        end.restore()
    return outputs


def copy_of(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as `tensor` does, gaps and overlaps included."""
    if not tensor.numel():
        return tensor
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((reach,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def have_same_bits(one: Any, other: Any) -> bool:
    """Whether two outputs of generated code are the same, NaN and all."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(_bytes_of(tensor) for tensor in (one, other)))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
