"""PyTorch's accuracy minifier: what of a compiled graph it takes to be wrong."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer, Place, Says
from benchmarks.publicbugs.running import run

CALL = re.compile(r"= torch\.ops\.(?:aten|prims)\.(\w+)")


class Minifier:
    name = "minifier"

    def fits(self, bug: Bug) -> bool:
        return bug.kind == "compiled"

    def answer(self, _golden: Program, target: Program, room: Path, result: Path) -> Answer:
        work = room / f"minifier-{target.file}"
        work.mkdir()
        env = {
            "PUBLICBUGS_RESULT": str(result),
            "TORCHDYNAMO_REPRO_AFTER": "aot",
            "TORCHDYNAMO_REPRO_LEVEL": "4",
            "TORCH_COMPILE_DEBUG_DIR": str(work),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        first = run([__name__, str(work), *target.arguments], room, env=env)
        launcher = next(work.rglob("minifier_launcher.py"), None)
        if launcher is None:
            says = Says.CRASHED if first.status else Says.SAME
            return Answer(says, text=first.stderr[-500:], commands=1, seconds=first.seconds)
        second = run([__name__, str(work), "--script", str(launcher)], room, env=env)
        repro = next(work.rglob("repro.py"), None)
        text = (repro or launcher).read_text()
        body = text.partition("def forward")[2].partition("def load_args")[0]
        places = [Place(name) for name in CALL.findall(body)]
        says = (
            Says.DIFFERENT
            if "AccuracyError" in first.stderr + second.stderr or repro
            else Says.CRASHED
        )
        return Answer(says, places, text[-300:], 2, first.seconds + second.seconds)


def main(work: str, *command: str) -> None:
    """The process has imported torch before these variables were set: hand them on."""
    import os
    import runpy
    import sys

    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    dynamo.repro_after, dynamo.repro_level, dynamo.debug_dir_root = "aot", 4, work
    inductor.force_disable_caches = True
    os.chdir(work)
    if command[0] == "--script":
        sys.argv = [command[1], "minify"] if len(command) == 2 else list(command[1:])
        runpy.run_path(command[1], run_name="__main__")
    else:
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
