"""Ranks of an MPI job that wait for work: mpiexec -n 9 python -m mpi4py.futures -m dumpcmp ..."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

from dumpcmp.engines.elsewhere import Elsewhere
from dumpcmp.nouns.errors import EngineError


@contextmanager
def opened(_address: str, roots: tuple[Path, ...]) -> Iterator[Executor]:
    """All ranks but this one. MPI ends the whole job where it loses a rank."""
    if MPI.COMM_WORLD.Get_size() < 2:
        raise EngineError(
            "executor mpi has no ranks besides this one",
            hint="mpiexec -n 9 python -m mpi4py.futures -m dumpcmp compare --executor mpi ...",
        )
    with MPIPoolExecutor() as inner:
        yield Elsewhere(inner, roots, lambda: int(inner.num_workers))
