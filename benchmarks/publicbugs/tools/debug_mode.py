"""PyTorch's DebugMode: logs of both runs with hashes of all tensors, and the first mismatch."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer, Place, Says
from benchmarks.publicbugs.program import write
from benchmarks.publicbugs.running import run

TOLERANCE = 1e-4  # of hashes, which are norms in float64: larger than rounding of float32


class HashedLogs:
    name = "DebugMode"

    def fits(self, bug: Bug) -> bool:
        return bug.ranks == 1  # it compares two logs of one process

    def answer(self, golden: Program, target: Program, room: Path, result: Path) -> Answer:
        told = room / "mismatches.json"
        told.unlink(missing_ok=True)
        env = {"PUBLICBUGS_RESULT": str(result), "PUBLICBUGS_TOLD": str(told)}
        words = [f"{program.file}:{int(program.compiled)}" for program in (golden, target)]
        ran = run([__name__, target.bug, *words], room, env=env)
        if ran.status or not told.exists():
            return Answer(Says.CRASHED, text=ran.stderr[-500:], commands=1, seconds=ran.seconds)
        held = json.loads(told.read_text())
        places = [Place(word) for word in held["calls"]]
        return Answer(Says(held["says"]), places, held["text"], 1, ran.seconds)


def main(name: str, *programs: str) -> None:
    from torch.utils._debug_mode import DebugMode

    logs = []
    for word in programs:
        file, _, compiled = word.partition(":")
        module = import_module(f"benchmarks.publicbugs.{name}.{file}")
        torch.manual_seed(0)
        torch._dynamo.reset()
        stance = torch.compiler.set_stance("default" if int(compiled) else "force_eager")
        with stance, DebugMode() as mode, DebugMode.log_tensor_hashes(hash_inputs=True):
            results = module.run()
        logs.append(list(mode.logs))
    write(results, os.environ["PUBLICBUGS_RESULT"])
    Path(os.environ["PUBLICBUGS_TOLD"]).write_text(json.dumps(compared(logs)))
    assert not distributed.is_initialized()


def compared(logs: list[list[object]]) -> dict[str, object]:
    from torch.utils._debug_mode import DebugMode

    try:
        found = DebugMode.check_hash_mismatches(logs[0], logs[1])
    except ValueError as said:
        ops = re.findall(r"\[([\w.:]+)\]", str(said))
        says = Says.DIFFERENT if ops else Says.UNDECIDED
        return {"says": says, "calls": ops[-1:], "text": str(said)}
    found = [one for one in found if not one["rel_diff"] <= TOLERANCE]
    calls = [str(one["call"]) for one in found[:1]]
    return {"says": Says.DIFFERENT if found else Says.SAME, "calls": calls, "text": str(found[:1])}


if __name__ == "__main__":
    main(*sys.argv[1:])
