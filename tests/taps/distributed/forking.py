"""Runs a program on several ranks that one process forks once it has imported what they need.

python -m tests.taps.distributed.forking NUM_RANKS MODULE WORDS ...

torchrun starts an interpreter a rank, and each spends seconds on importing torch.
"""

import os
import runpy
import signal
import socket
import sys
import traceback
from importlib import import_module

SHARED = ("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor")


def main(num_ranks: int, program: str, words: list[str]) -> int:
    """Fork the ranks and wait for all; where one fails the others are ended."""
    for name in (program, *SHARED):
        import_module(name)
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
    if pid:
        return pid
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in places.items()})
    os.environ["MASTER_ADDR"] = "localhost"
    status = 1
    try:
        runpy.run_module(program, run_name="__main__")
        status = 0
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
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
