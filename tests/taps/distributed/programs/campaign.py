"""Runs many scenarios in one set of processes, each under a capture of its own: torchrun me.

torchrun --nproc-per-node 2 -m tests.taps.distributed.programs.campaign DIRECTORY NAME ...
"""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dumpcmp.dumping.capturing import capture
from tests.taps.distributed.programs import bucketed, contexts, scenarios
from tests.taps.distributed.programs.names import FAULTS, GOLDENS, RUNS

WHOLES: dict[str, Any] = {
    "long": contexts.whole,
    "bucketed": bucketed.whole,
    "summed up": bucketed.summed_up,
}
HOME = "tests.taps.distributed.programs"


def capture_into(path: Path) -> Any:
    return partial(capture, None, path, mode="eager", backward=True, weights=True)


def main(directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if names == ["goldens"]:
        for name, kind in GOLDENS.items():
            golden = WHOLES.get(name, scenarios.golden)
            golden(capture_into(directory / f"golden-{name}"), **kind)
        return
    dist.init_process_group("gloo")
    for name in names:
        scenario, kind = RUNS[name] if name in RUNS else FAULTS[name]
        planted = {"fault": name} if name in FAULTS else {}
        path = directory / f"{name}-{dist.get_world_size()}"
        module, _, function = scenario.rpartition(":")
        home = import_module(f"{HOME}.{module or 'scenarios'}")
        getattr(home, function)(capture_into(path), **kind, **planted)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
