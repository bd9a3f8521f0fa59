"""Runs many subjects in one set of processes, each under a capture of its own: torchrun me.

torchrun --nproc-per-node 2 -m benchmarks.partitioned.campaign DIRECTORY NAME[:FAULT] ...
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.partitioned.corpus import ALL, GOLDENS, Program
from dumpcmp.dumping.capturing import capture


def run(program: Program, path: Path, fault: str = "") -> None:
    """Run one program and keep it at `path`."""
    module, _, name = program.function.partition(":")
    kept = partial(capture, None, path, mode=program.mode, backward=program.backward, weights=True)
    planted: dict[str, Any] = {"fault": fault} if fault else {}
    torch.compiler.reset()  # or dynamo takes the next model for another shape of the last
    getattr(import_module(module), name)(kept, **program.words, **planted)


def place(name: str) -> str:
    """The directory of a run."""
    return name.replace(" ", "_").replace(":", "__").replace("/", "_")


def main(directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ["PARTITIONED_ROOM"] = str(directory)
    if names[0] == "goldens":
        for name in names[1:]:
            run(GOLDENS[name], directory / f"golden-{name}")
        return
    dist.init_process_group("gloo")
    for name in names:
        subject, _, fault = name.partition(":")
        run(ALL[subject].program, directory / place(name), fault)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
