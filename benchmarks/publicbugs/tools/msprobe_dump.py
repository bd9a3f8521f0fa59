"""msProbe: dump every API of both runs, and compare; needs ``pip install mindstudio-probe``."""

from __future__ import annotations

import csv
import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer, Place, Says
from benchmarks.publicbugs.program import write
from benchmarks.publicbugs.running import run


class MsProbe:
    name = "msProbe"

    def fits(self, bug: Bug) -> bool:
        """It hooks APIs of eager programs, and compares runs of one world size."""
        return find_spec("msprobe") is not None and bug.ranks == 1 and bug.kind != "compiled"

    def answer(self, golden: Program, target: Program, room: Path, result: Path) -> Answer:
        dumps, seconds = [], 0.0
        for program in (golden, target):
            path = room / f"msprobe-{program.label}"
            if not path.exists():
                kept = result if program is target else room / "right"
                env = {"PUBLICBUGS_RESULT": str(kept), "PUBLICBUGS_TOLD": str(path)}
                ran = run([__name__, program.bug, program.file], room, env=env)
                seconds += ran.seconds
                if ran.status:
                    return Answer(Says.CRASHED, text=ran.stderr[-500:], commands=3, seconds=seconds)
            dumps.append(next(path.rglob("dump.json")))
        report = room / f"msprobe-report-{target.file}"
        report.mkdir()
        words = ["-gp", str(dumps[0]), "-tp", str(dumps[1]), "-o", str(report)]
        ran = run(["msprobe.msprobe", "compare", *words], room)
        seconds += ran.seconds
        table = next(report.glob("*.csv"), None)
        if table is None:
            return Answer(Says.CRASHED, text=ran.stdout[-500:], commands=3, seconds=seconds)
        with table.open() as file:
            bad = [row for row in csv.DictReader(file) if row["Result"] not in ("pass", "warning")]
        places = [place_of(row) for row in bad[:1]]
        says = Says.DIFFERENT if bad else Says.SAME
        return Answer(says, places, str(bad[:1])[:300], 3, seconds)


def place_of(row: dict[str, str]) -> Place:
    """`Functional.linear.1.forward.output.0`; what one side lacks is `N/A` there."""
    name = row["Bench Name"] if row["NPU Name"] == "N/A" else row["NPU Name"]
    words = name.split(".")
    return Place(words[1], value=".".join(words[4:]))


def main(name: str, file: str) -> None:
    from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]

    path = Path(os.environ["PUBLICBUGS_TOLD"])
    settings = {
        "task": "tensor", "dump_path": str(path), "rank": [], "step": [], "level": "L1",
        "async_dump": False, "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    }  # fmt: skip
    config = path.with_suffix(".config.json")
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))
    module = import_module(f"benchmarks.publicbugs.{name}.{file}")
    torch.manual_seed(0)
    debugger.start()
    results = module.run()
    debugger.stop()
    debugger.step()
    write(results, os.environ["PUBLICBUGS_RESULT"])


if __name__ == "__main__":
    main(*sys.argv[1:])
