"""What a repro shows: the guilty code, its inputs, what was given out and what is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

_LEAST = 1e-300
WIDE = "[x.double() if x.is_floating_point() else x for x in inputs]"


class GuiltyKind(StrEnum):
    """What is wrong, which decides what the script holds against what."""

    KERNEL = "wrong kernel"  # one call gives another result than float64
    PROGRAM = "different program"  # both spellings, side by side
    COMPILED = "compiled region"  # right as it is written, wrong as it was compiled
    OPTIMIZER = "optimizer step"
    PARALLEL = "parallel"  # what ranks compute together
    VALUE = "different value"  # a weight or an input that no call made


class ShownBy(StrEnum):
    """Where the fault can be seen."""

    FRESH = "fresh"  # the code gives the wrong result in a new process
    RECORDED = "recorded"  # the code is right in a new process; what the run recorded is wrong


class ErrorMeasure(StrEnum):
    """How an error is measured in the script."""

    EXACT = "exact"  # the number of elements that are others
    ROWS = "rows"  # the worst row, relative to itself and the mean row
    ELEMENTS = "elements"  # the worst element, relative to itself and the rms
    GAIN = "gain"  # how much larger or smaller it is on the whole


class ReproCode(Protocol):
    """Code that a script has, and that can be run here in float64."""

    @property
    def lines(self) -> list[str]: ...  # the body of a function

    def run(self, values: Mapping[str, Tensor]) -> Tensor: ...  # in float64

    def with_number(self, old: int, new: int) -> ReproCode: ...  # of a dim that was cut


@dataclass(frozen=True, slots=True, eq=False)
class ReproCase:
    """One fault, cut out of a run."""

    kind: GuiltyKind
    place: str  # "layers.1.mlp/mul, call 0, token 0 of TinyDecoder"
    reason: str
    mine: ReproCode
    values: Mapping[str, Tensor]  # what goes in, by variable
    expected: Tensor  # in float64, or as it is where every bit is known
    recorded: Tensor | None  # what the run gave out
    measure: ErrorMeasure
    limit: float
    golden: ReproCode | None = None  # the other spelling
    shown: ShownBy = ShownBy.RECORDED
    right: str = "mine(*inputs)"  # the right op, as code
    is_random: bool = False  # the inputs are random numbers in place of the run's
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> str:
        """What gives the wrong result, as code."""
        if self.shown is ShownBy.RECORDED:
            return 'values["recorded"]'
        return "torch.compile(mine)(*inputs)" if self.is_compiled else "mine(*inputs)"

    @property
    def num_ranks(self) -> int:
        """How many processes the script needs."""
        return 1

    @property
    def command(self) -> str:
        """What runs the script."""
        return "python repro.py"

    @property
    def rights(self) -> tuple[str, ...]:
        """Ways to the right result, as code; the first that passes is taken."""
        ways = (
            "mine(*inputs)", "golden(*inputs)", f"mine(*{WIDE})",
            "mine(*[x.contiguous() for x in inputs])", "expected",
        )  # fmt: skip
        return tuple(way for way in ways if self.golden is not None or "golden" not in way)

    @property
    def is_compiled(self) -> bool:
        """Whether the code is right until it is compiled."""
        return self.kind is GuiltyKind.COMPILED

    @property
    def compiles(self) -> bool:
        """Whether the script calls the compiler."""
        return "torch.compile(" in self.wrong


def error_of(measure: ErrorMeasure, got: Tensor, expected: Tensor) -> float:
    """How far `got` is off; the script has the same formula."""
    if got.shape != expected.shape:
        return float("inf")
    if measure is ErrorMeasure.EXACT:
        same = (got == expected) | ((got != got) & (expected != expected))
        return float((~same).sum())
    got = got.to(expected.dtype)
    if not torch.equal(got.isfinite(), expected.isfinite()):
        return float("inf")
    off = torch.where(expected.isfinite(), got - expected, 0).reshape(-1, _width(expected))
    want = torch.where(expected.isfinite(), expected, 0).reshape(-1, _width(expected))
    match measure:
        case ErrorMeasure.ROWS:
            off, want = torch.linalg.vector_norm(off, dim=1), torch.linalg.vector_norm(want, dim=1)
            return float((off / (want + want.mean() + _LEAST)).max())
        case ErrorMeasure.ELEMENTS:
            rms = want.abs().square().mean().sqrt()
            return float((off.abs() / (want.abs() + rms + _LEAST)).max())
    return float(((off * want.conj()).sum() / (want.abs().square().sum() + _LEAST)).abs())


def _width(value: Tensor) -> int:
    return value.shape[-1] if value.ndim else 1
