"""Which rows are kept of a value, where not all are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dumpcmp.nouns.spoken import counted

if TYPE_CHECKING:  # a command's help is there without it
    import numpy as np
    from numpy.typing import NDArray

ROWS, EVENLY = "rows", "evenly"  # the attribute of what stands for a value, and the rule that it is


def row_length(shape: tuple[int, ...]) -> int:
    """Elements of a row: the last dim; a value of one dim has rows of one element."""
    return shape[-1] if len(shape) > 1 else 1


@dataclass(frozen=True, slots=True)
class Sample:
    """Some rows of a value, evenly spread from the first to the last.

    Rows are all dims but the last, flat: the tokens of a batch.
    """

    num_kept: int
    num_rows: int

    @classmethod
    def of(cls, num_kept: int, shape: tuple[int, ...]) -> Sample:
        """So many of the rows of a value of `shape`, or all where it has no more."""
        row = row_length(shape)
        num_rows = math.prod(shape) // row if row else 0
        return cls(min(num_kept, num_rows), num_rows)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Where the rows that are kept lie among all."""
        import numpy as np

        steps = max(1, self.num_kept - 1)
        return np.arange(self.num_kept, dtype=np.int64) * (self.num_rows - 1) // steps

    def __str__(self) -> str:
        return f"{self.num_kept} of {counted(self.num_rows, 'row')}"
