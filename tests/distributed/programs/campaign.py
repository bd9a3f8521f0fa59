"""Runs many scenarios in one set of processes, each under a capture of its own: torchrun me.

torchrun --nproc-per-node 2 -m tests.distributed.programs.campaign DIRECTORY NAME ...
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dumpcmp.dumping import capture
from tests.distributed.programs import scenarios

# Name -> the scenario and what it is told. Faults are planted in one layer or on one rank.
GOLDENS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "dropout": {"fused": True, "dropout": 0.1},
    "experts": {"fused": True, "experts": True},
    "one": {"batch": 1},
}
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dtensor": (scenarios.dtensor_tp, {}),
    "fsdp": (scenarios.fsdp, {}),
    "fsdp-tp": (scenarios.fsdp, {"tp": 2}),
    "ddp": (scenarios.ddp, {}),
    "pipeline": (scenarios.pipeline, {}),
    "megatron": (scenarios.megatron, {}),
    "annotated": (scenarios.megatron, {"annotate": True}),
    "dropout": (scenarios.megatron, {"dropout": 0.1}),
    "by hand": (scenarios.data_parallel, {}),
    "sequence": (scenarios.sequence, {}),
    "experts": (scenarios.experts, {}),
}
FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    fault: (run, {"fault": fault, **kind})
    for fault, run, kind in (
        ("swapped shards", scenarios.megatron, {}),
        ("forgotten all_reduce", scenarios.megatron, {}),
        ("all_reduce twice", scenarios.megatron, {}),
        ("bias on every rank", scenarios.megatron, {}),
        ("stale weights", scenarios.megatron, {}),
        ("different dropout seeds", scenarios.megatron, {"dropout": 0.1}),
        ("wrong sequence offset", scenarios.sequence, {}),
        ("gradients not averaged", scenarios.data_parallel, {}),
        ("router differs on one rank", scenarios.experts, {}),
    )
}


def capture_into(path: Path) -> Any:
    return partial(capture, None, path, mode="eager", backward=True, weights=True)


def main(directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if names[0] == "goldens":
        for name, kind in GOLDENS.items():
            scenarios.golden(capture_into(directory / f"golden-{name}"), **kind)
        return
    dist.init_process_group("gloo")
    for name in names:
        run, kind = (RUNS | FAULTS)[name]
        run(capture_into(directory / f"{name}-{dist.get_world_size()}"), **kind)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
