"""Buckets: a CUDA graph runs on a batch that was filled up, and what fills it is no value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from dumpcmp.nouns.errors import SelectionError


@dataclass(frozen=True, slots=True)
class Padding:
    """The first `rows` of a bucket `of` so many are real."""

    rows: int
    of: int
    dim: int | None = None  # None: the first dimension that has as many

    def dim_in(self, shape: tuple[int, ...]) -> int | None:
        """The dimension of a value of this shape that is filled up, if one is."""
        dims = range(len(shape)) if self.dim is None else [self.dim]
        return next(
            (d for d in dims if -len(shape) <= d < len(shape) and shape[d] == self.of), None
        )


_padding: ContextVar[Padding | None] = ContextVar("padding", default=None)


def in_force() -> Padding | None:
    """The padding of what is captured or replayed now."""
    return _padding.get()


@contextmanager
def padded(rows: int, *, of: int, dim: int | None = None) -> Iterator[None]:
    """Say that of the CUDA graphs replayed in the block only the first `rows` of `of` are real.

    An engine captures a graph for each of a few batch sizes, and fills a batch up to the next
    one. Inside of the block each value of such a graph is cut to its real rows, along `dim`, or
    the first dimension that has `of` elements, so that it compares with a run that fills nothing:

        with dumpcmp.padded(13, of=16):
            graph.replay()

    Around the capture of the graph it has whole values copied where Summaries or rows are kept,
    which are then taken of the real rows at each replay.
    """
    if not 0 <= rows <= of:
        raise SelectionError(
            f"{rows} rows of {of} cannot be real",
            hint="give the number of real rows first, and the size of the bucket as `of`",
        )
    token = _padding.set(Padding(rows, of, dim))
    try:
        yield
    finally:
        _padding.reset(token)
