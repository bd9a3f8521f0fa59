"""Rebuild the sample dumps: a golden run of a very small decoder, and one with a fault in it.

Run it in the root of the repository: ``python sample_dumps/build.py``.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from dumpcmp import demo
from dumpcmp.archive.paths import run_text
from dumpcmp.dumping.capturing import capture
from dumpcmp.faults import Fault, on_output, planted, zero_channel

SIZE = demo.Size(vocabulary=64, width=32, hidden=48, num_layers=2, num_heads=2, longest=16)
FAULT = Fault("zeroed channel", "layers.1.attn.o_proj", "linear", on_output(zero_channel))
NUM_TOKENS = 2
OF_THIS_MACHINE = ("platform", "device", "initial_seed", "environment")


def build(room: Path) -> None:
    """Write ``golden`` and ``target`` into `room`."""
    torch.set_num_threads(1)
    for name, fault in (("golden", None), ("target", FAULT)):
        model, _ = demo.build(SIZE)
        strike = planted(model, fault) if fault else nullcontext()
        torch.manual_seed(0)
        with strike, capture(model, room / name, overwrite=True):
            demo.generate(model, NUM_TOKENS)
        for facts in (room / name).glob("*/run.json"):
            forget_machine(facts)


def forget_machine(path: Path) -> None:
    """Take out of run.json what tells of the machine and not of the run."""
    facts = json.loads(path.read_text())
    for name in OF_THIS_MACHINE:
        del facts["run"][name]
    path.write_text(run_text(facts))


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
