"""FSDP2 seen by the dispatcher, as often as there are names: torchrun me DIRECTORY NAME ..."""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from dumpcmp.dumping.capturing import capture
from tests.taps.distributed.programs.scenarios import fsdp


def main(directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        fsdp(partial(capture, None, directory / name, mode="aten", backward=True))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
