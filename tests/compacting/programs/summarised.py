"""Runs scenarios on several ranks with summaries alone kept: torchrun me.

torchrun --nproc-per-node 2 -m tests.compacting.programs.summarised DIRECTORY NAME ...
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from dumpcmp.dumping.capturing import capture
from tests.taps.distributed.programs import scenarios
from tests.taps.distributed.programs.names import FAULTS, RUNS


def main(directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        scenario, kind = RUNS[name] if name in RUNS else FAULTS[name]
        planted = {"fault": name} if name in FAULTS else {}
        kept = partial(capture, None, directory / name, backward=True, keep="summary")
        getattr(scenarios, scenario)(kept, **kind, **planted)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
