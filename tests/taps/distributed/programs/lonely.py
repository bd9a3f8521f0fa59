"""One rank of a run without torch.distributed: python me PATH states|dies RANK SIZE."""

import os
import signal
import sys
import time

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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
