"""Does the same for many ranks at once, in threads: what waits for a disk or a store waits once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

NUM_THREADS = 16
FEW = 4  # that are not worth threads


def abreast(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """`work` on each of `things`, in their order."""
    if len(things) <= FEW:
        return list(map(work, things))
    with ThreadPoolExecutor(min(NUM_THREADS, len(things))) as threads:
        return list(threads.map(work, things))
