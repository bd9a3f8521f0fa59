"""Ranks of a run without torch.distributed, and how each ended: python me PATH states|dies SIZE.

They are forked from one interpreter, as it takes seconds to import torch, and know nothing of it.
"""

import os
import signal
import sys
import time
import traceback

import torch

import dumpcmp
from dumpcmp.dumping.capturing import capture
from tests.taps.distributed.programs.decoder import Decoder, samples


def main(path: str, what: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dumpcmp.set_rank(rank, size, mesh=f"dp:{rank}/{size}")
    model = Decoder()
    mine = samples()[0].chunk(size)[rank]
    with torch.no_grad(), capture(None, path, mode="eager"):
        torch.manual_seed(0)
        model(mine)
        if what == "dies" and rank == 1:
            time.sleep(0.5)  # what was finished 100 ms before a kill is in the archive
            os.kill(os.getpid(), signal.SIGKILL)


def forked(path: str, what: str, rank: int, size: int) -> int:
    """The process of a rank that runs from here on."""
    if pid := os.fork():
        return pid
    try:
        main(path, what, rank, size)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    path, what, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ranks = [forked(path, what, rank, size) for rank in range(size)]
    print(*(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))
