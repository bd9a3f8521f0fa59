"""Which engine a user names, and how it is opened: local:4, dask:tcp://10.0.0.7:8786, ray, mpi."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dumpcmp.engines.elsewhere import GivesExecutor
from dumpcmp.execute import executor_for
from dumpcmp.nouns.errors import EngineError, SelectionError

FORMS = "local[:N]|dask[:ADDRESS]|ray[:ADDRESS]|mpi"
_REMOTE = {"dask": "distributed", "ray": "ray", "mpi": "mpi4py"}  # what an engine needs installed


Workers = str | Executor | GivesExecutor
Local = Callable[[int], AbstractContextManager[Executor]]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine by name, and where it is: the number of processes, or an address."""

    kind: str
    place: str = ""

    @classmethod
    def named(cls, text: str) -> Engine:
        """Read ``local:4``, ``dask:tcp://10.0.0.7:8786``, ``ray:auto`` or ``mpi``."""
        kind, _, place = text.partition(":")
        known = kind == "local" or kind in _REMOTE
        numbered = place.isdecimal() and int(place) > 0
        wrong = place and (kind == "mpi" or (kind == "local" and not numbered))
        if not known or wrong or text.endswith(":"):
            raise SelectionError(f"executor {text!r} is not known", hint=f"write {FORMS}")
        return cls(kind, place)

    @property
    def is_local(self) -> bool:
        """Whether it is this machine's processes, without any engine."""
        return self.kind == "local"

    @property
    def num_jobs(self) -> int:
        """How many processes of this machine: as many as it has cores, where none are stated."""
        return int(self.place) if self.place else len(os.sched_getaffinity(0))

    def opened(self, roots: Iterable[Path] = ()) -> AbstractContextManager[Executor]:
        """Its workers, which must see the archives at `roots` under the same paths."""
        try:
            import_module(_REMOTE[self.kind])
            adapter = import_module(f"dumpcmp.engines.on_{self.kind}")
        except (ImportError, RuntimeError) as error:  # as where mpi4py finds no MPI
            raise EngineError(
                f"executor {self.kind} needs the package {_REMOTE[self.kind]}: {error}",
                hint=f"pip install 'dumpcmp[{self.kind}]'",
            ) from None
        made: AbstractContextManager[Executor] = adapter.opened(self.place, tuple(roots))
        return made


def workers_of(
    executor: Workers | None,
    jobs: int = 1,
    *,
    roots: Iterable[Path] = (),
    local: Local = executor_for,
) -> AbstractContextManager[Executor]:
    """Those who do the work: of `executor`, or where there is none, `jobs` processes as `local`."""
    if executor is None:
        return local(jobs)
    if jobs != 1:
        raise SelectionError(
            "executor and jobs both say who does the work", hint="local:N is N jobs: leave one out"
        )
    if isinstance(executor, str):
        engine = Engine.named(executor)
        return local(engine.num_jobs) if engine.is_local else engine.opened(roots)
    if isinstance(executor, Executor):
        return nullcontext(executor)
    from dumpcmp.engines.on_dask import of_client

    return of_client(executor, tuple(roots))


def is_elsewhere(executor: Workers | None) -> bool:
    """Whether those who do the work may have another working directory than this process."""
    if executor is None:
        return False
    return not (isinstance(executor, str) and Engine.named(executor).is_local)


def whole_path(path: str | Path) -> str | Path:
    """A path, or a URL, that means the same from wherever it is looked at."""
    return path if "://" in str(path) else Path(path).absolute()
