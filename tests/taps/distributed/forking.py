"""Runs programs on several ranks that one process forks, which has imported what they need.

torchrun starts an interpreter a rank, and each spends seconds on importing torch. This one reads
requests, a line of JSON each, and answers each with the exit status of the program.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from dumpcmp.pytorch.imports import once_imported
from tests.one_file import compile_together

SHARED = ("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor")
RARELY = (10_000, 20, 50)  # objects more, and collections of younger ones, before the next


def serve() -> None:
    """Do what each line asks for in a process of its own, until there are no more."""
    for name in (*SHARED, "dumpcmp.dumping.capturing"):
        import_module(name)
    gc.freeze()
    gc.set_threshold(*RARELY)
    with once_imported("torch._inductor.async_compile", compile_together):
        for line in sys.stdin:
            pid = os.fork()
            if pid == 0:
                _end(_follow, *json.loads(line))
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _follow(num_ranks: int, words: list[str], environment: dict[str, str], said: str) -> int:
    """Run the module `words[0]` in `environment`; what it writes goes to the file `said`."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(said, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.environ.clear()
    os.environ.update(environment)
    return main(num_ranks, words[0], words[1:])


def main(num_ranks: int, program: str, words: list[str]) -> int:
    """Fork the ranks and wait for all; where one fails the others are ended."""
    import_module(program)
    sys.modules.pop(program)  # so that it can run as a program
    sys.argv = [program, *words]
    port = _free_port()
    ranks = {_forked(rank, num_ranks, port, program): rank for rank in range(num_ranks)}
    while ranks:
        pid, status = os.wait()
        del ranks[pid]
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


def _forked(rank: int, num_ranks: int, port: int, program: str) -> int:
    pid = os.fork()
    if pid == 0:
        _end(_run, rank, num_ranks, port, program)
    return pid


def _run(rank: int, num_ranks: int, port: int, program: str) -> int:
    if num_ranks > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": port}
        os.environ.update({name: str(number) for name, number in places.items()})
        os.environ["MASTER_ADDR"] = "localhost"
    runpy.run_module(program, run_name="__main__")
    return 0


def _end(work: Callable[..., int], *args: Any) -> NoReturn:
    """Do `work`, and end this process as it ended."""
    status = 1
    try:
        status = work(*args)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    serve()
