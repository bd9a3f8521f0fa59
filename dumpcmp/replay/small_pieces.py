"""Holds few elements against their replay: numpy takes a third of torch's time to begin a call.

What is done to single elements is the same in both. Sums stay torch's, in its order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PieceNumbers = NDArray[np.float64]

_MOST = 1 << 12  # elements: beyond them the call is no longer what takes the time
_DTYPES = (torch.float32, torch.float64)  # that numpy rounds to as torch does


def is_small(known: Tensor, seen: Tensor, *beside: Tensor) -> bool:
    """Whether a piece is one of these: of some elements, dense, on the CPU, in dtypes of both."""
    if not 0 < known.numel() <= _MOST or known.dtype != torch.float64 or len(beside) > 1:
        return False
    return seen.dtype in _DTYPES and all(
        one.is_cpu and one.dtype in _DTYPES and one.is_contiguous()
        for one in (known, seen, *beside)
    )


@dataclass(frozen=True, slots=True)
class SmallPiece:
    """What a piece of a value differs in from its replay; all of it is finite."""

    known: PieceNumbers
    d: PieceNumbers
    off: PieceNumbers
    terms: PieceNumbers | None
    rows: tuple[PieceNumbers, PieceNumbers]  # norms of the rows of d, and of what is known
    sums: list[float]  # of squares: d, known, their squares, the best rounding; off along it, off
    squares_seen: float
    terms_squared: float

    @classmethod
    def of(cls, known: Tensor, seen: Tensor, beside: list[Tensor]) -> SmallPiece | None:
        """Take the differences and their sums; None where anything is not finite."""
        room = torch.empty((5, *known.shape), dtype=torch.float64)
        exact, got, into = known.numpy(), seen.numpy(), room.numpy()
        with np.errstate(all="ignore"):
            wide = got.astype(np.float64)
            d, off, squares, ideal, squared = into
            np.subtract(wide, exact, out=d)
            np.subtract(wide, exact.astype(got.dtype), out=off, dtype=np.float64)
            np.multiply(exact, exact, out=squares)
            np.subtract(d, off, out=ideal)
            np.multiply(wide, wide, out=squared)
            terms = beside[0].numpy().astype(np.float64) if beside else None
        errors, offs, fourths, best, whole = room.view(5, -1).unbind()
        sums = _sums(errors, offs, fourths, best, known.reshape(-1))
        more = [] if terms is None else [torch.from_numpy(terms * terms).sum().item()]
        seen_squared = whole.sum().item()
        if not math.isfinite(sum(sums) + seen_squared + sum(more)):
            return None
        norms = torch.linalg.vector_norm
        rows = norms(errors.view(known.shape), dim=-1).numpy(), norms(known, dim=-1).numpy()
        return cls(exact, d, off, terms, rows, sums, seen_squared, sum(more))

    def num_beyond(self, grain: float) -> int:
        """How many elements are not the replay as the dtype rounds it."""
        return int((np.abs(self.off) > grain).sum())

    def worst_row(self, rms: float) -> float:
        """The largest error of a row, over its own norm and that of a usual one."""
        errors, norms = self.rows
        return _largest(errors, norms + rms * math.sqrt(self.d.shape[-1]))

    def worst_element(self, rms: float, condition: float, grain: float, adds_rms: bool) -> float:
        """The largest error of an element over its size, the rms, and the terms of its sum."""
        level = np.abs(self.known)
        if adds_rms:
            level += rms
        if self.terms is not None:
            level += self.terms / condition
        return _largest(np.maximum(np.abs(self.d) - grain, 0.0), level)


def _sums(d: Tensor, off: Tensor, squares: Tensor, ideal: Tensor, known: Tensor) -> list[float]:
    dot = torch.dot
    found = (
        dot(d, d), squares.sum(), dot(squares, squares), dot(ideal, ideal), dot(off, known),
        off.sum(),
    )  # fmt: skip
    return [one.item() for one in found]


def _largest(errors: PieceNumbers, levels: PieceNumbers) -> float:
    """The largest error in units of its level; infinite where there is an error and no level."""
    with np.errstate(all="ignore"):
        ratios = np.where(errors > 0, errors / levels, 0.0)
    return float(ratios.max())
