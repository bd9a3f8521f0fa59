"""`torch.allclose` on what both programs return: says that they differ, not where."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer, Says
from benchmarks.publicbugs.reproducing import read
from benchmarks.publicbugs.running import run


class AllClose:
    name = "allclose"

    def fits(self, _bug: Bug) -> bool:
        return True

    def answer(self, golden: Program, target: Program, room: Path, result: Path) -> Answer:
        seconds = 0.0
        for program, path in ((golden, room / "golden"), (target, result)):
            env = {"PUBLICBUGS_RESULT": str(path)}
            ran = run(program.arguments, room, program.ranks, env)
            seconds += ran.seconds
            if ran.status:
                return Answer(Says.CRASHED, text=ran.stderr[-500:], commands=2, seconds=seconds)
        right, mine = read(room / "golden", golden.ranks), read(result, target.ranks)
        whole = right if len(right) == len(mine) else right * len(mine)
        close = all(
            a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=True)
            for one, other in zip(mine, whole, strict=True)
            for a, b in zip(one, other, strict=True)
        )
        return Answer(Says.SAME if close else Says.DIFFERENT, commands=2, seconds=seconds)
