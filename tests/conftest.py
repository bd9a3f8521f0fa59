"""How the tests share the machine: which of them run on one worker, and on how many threads."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from dumpcmp.pytorch.imports import once_imported
from tests.choosing_cases import leave_the_rest_to_long_runs
from tests.one_file import compile_together
from tests.taps.distributed.forking import RARELY
from tests.taps.distributed.launching import forked

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core; what it starts inherits this
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# What the processor says it can do, the compiler can: Inductor tries it out, for ten seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# A shell lets what runs in its background ignore interrupts; programs of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples that come slowly tell of a busy machine, not of a fault.
settings.register_profile("tests", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

TESTS = Path(__file__).parent

# Folders and files whose tests look at the same runs, which are made once for each worker.
TOGETHER = {
    "taps/inductor": "inductor",
    "taps/distributed": "distributed",
    "compacting/test_ranks.py": "distributed",
}


# What takes long in few tests begins first: xdist would leave it to the end, and workers idle.
FIRST = ("distributed", "inductor", "docs/test_blocks.py", "laws/test_laws.py")


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each test file a worker; files that share runs share one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0].removeprefix("tests/")
        return next((name for start, name in TOGETHER.items() if path.startswith(start)), path)

    def _assign_work_unit(self, node: Any) -> None:
        waiting = [scope for scope in FIRST if scope in self.workqueue]
        for scope in waiting[:1]:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Called by xdist where there are several workers."""
    return Together(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest leaves out what is marked ``long``."""
    leave_the_rest_to_long_runs(items)


# The first worker imports the tests before the others: what it had to compile they find compiled.
TURN = Path(__file__).open()  # noqa: SIM115  # a process that ends in any way lets go of it


def pytest_configure() -> None:
    """Have the first worker begin, which xdist starts before the others."""
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        fcntl.flock(TURN, fcntl.LOCK_EX)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Wait for the first worker, or let the others begin."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        fcntl.flock(TURN, fcntl.LOCK_SH)
    result = yield
    TURN.close()
    return result


def pytest_collection_finish() -> None:
    """Search for garbage rarely, and not in what is imported by now: a tenth, by a profile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)


@pytest.fixture(scope="session", autouse=True)
def compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache of Inductor's for all workers of a run: it compiles torch's headers into each."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "inductor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
        yield path


@pytest.fixture(scope="session", autouse=True)
def linker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """Kernels are linked by gold where there is one: it reads torch's symbols in a third."""
    found = shutil.which("ld.gold")
    if found is None:
        yield None
        return
    room = tmp_path_factory.mktemp("linker")
    (room / "ld").symlink_to(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPILER_PATH", str(room), prepend=os.pathsep)
        yield found


@pytest.fixture(scope="session", autouse=True)
def together() -> Iterator[None]:
    """Kernels of one graph are compiled together."""
    patch = pytest.MonkeyPatch()
    with once_imported("torch._inductor.async_compile", partial(compile_together, patch.setattr)):
        yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def unread() -> Iterator[None]:
    """What torch works out and nobody reads here: most of the time of a small graph, and of a seed.

    It empties the processor's caches to time the guards of each graph, for a log. Of each seed it
    writes down the stack, for devices that this machine may lack.
    """
    with pytest.MonkeyPatch.context() as patch:
        if guards := sys.modules.get("torch._dynamo.guards"):
            patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)
        for name in ("torch.cuda", "torch.mtia", "torch.xpu"):
            device = sys.modules.get(name)
            if device and not device.is_available():
                patch.setattr(device, "traceback", SimpleNamespace(format_stack=list))
        yield


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole models of the partitioned runs, on one rank: ``golden-NAME``."""
    path = tmp_path_factory.mktemp("golden")
    forked(1, "tests.taps.distributed.programs.campaign", str(path), "goldens")
    return path
