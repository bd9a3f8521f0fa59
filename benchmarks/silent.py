"""Public silent bugs of PyTorch: which are found at the op, found, missed, or disturbed away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import dumpcmp
from benchmarks import publicbugs
from benchmarks.tables import Table
from dumpcmp.dumping.programs import Dumped, dump
from dumpcmp.dumping.witness import digest_of
from dumpcmp.nouns.outcome import Outcome

HEADINGS = ("bug", "what it is", "outcome", "named", "certified", "fixed twin")
HOME = Path(publicbugs.__file__).parent


def names() -> list[str]:
    wanted = os.environ.get("BUGS", "").split(",")
    found = sorted(path.parent.name for path in HOME.glob("*/bug.py"))
    return [name for name in found if wanted == [""] or name in wanted]


def digest_without_compiling(module: Any) -> str:
    with torch.compiler.set_stance("force_eager"):
        return digest_of(module.run())


def measured(name: str) -> list[str]:
    """Assert that the bug is there without any tool, then look for it."""
    bug, fixed = (
        import_module(f"benchmarks.publicbugs.{name}.{file}") for file in ("bug", "fixed")
    )
    is_compiled = not getattr(bug, "EAGER_IS_WRONG", False)
    right = digest_without_compiling(bug) if is_compiled else digest_of(fixed.run())
    wrong = digest_of(bug.run())
    assert wrong != right, f"{name} does not reproduce on torch {torch.__version__}"
    assert digest_of(fixed.run()) == right, f"the fixed twin of {name} is not right"
    mode = "compiled" if is_compiled else "eager"
    with tempfile.TemporaryDirectory() as room:
        golden, target, twin = (Path(room, word) for word in ("golden", "target", "twin"))
        dump((bug if is_compiled else fixed).run, golden)
        results: list[str] = []
        done = dump(
            lambda: results.append(digest_of(bug.run())), target, mode=mode, certify=True
        )  # fmt: skip
        outcome = dumpcmp.compare(golden, target)
        dump(fixed.run, Path(room, "right"))
        dump(fixed.run, twin, mode=mode)
        sound = dumpcmp.compare(Path(room, "right"), twin)
    title = (bug.__doc__ or "").strip().rstrip(".")
    found = found_as(outcome, done, bug.OP, results[-1] == right)
    first = outcome.first_divergence
    named = "" if first is None else f"{first.key.op.function}" + _suspects(first.suspects)
    says = {True: "yes", False: "no", None: ""}[done.certified]
    twin_says = str(sound.conclusion).rpartition(".")[2]
    return [name, title, found, named, says, twin_says]


def _suspects(listed: tuple[str, ...]) -> str:
    names = [place.rpartition("/")[2].partition("#")[0] for place in listed]
    return f" (or {', '.join(names)})" if names else ""


def found_as(outcome: Outcome, done: Dumped, op: str, is_right: bool) -> str:
    if is_right:
        return "disturbed away" if done.certified else "disturbed, refused"
    first = outcome.first_divergence
    if outcome.exit_code == 1:
        suspects = [] if first is None else [first.key.op.function, *first.suspects]
        named = any(word in suspect for word in op.split() for suspect in suspects)
        return "found at the op" if named else "found"
    return "missed" if outcome.exit_code == 0 else "unknown"


def in_a_process_of_its_own(name: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.silent", name],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        row = [name, "", "no answer", ran.stderr.strip().rpartition("\n")[2], "", ""]
    else:
        row = json.loads(lines[-1])
    print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    return row


def table() -> Table:
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as pool:
        rows = list(pool.map(in_a_process_of_its_own, names()))
    how = (
        f"torch {torch.__version__}, CPU. Issues of PyTorch on silently wrong results; each is "
        "first shown to be there without any tool. Golden is an eager dump of the same program "
        "(torch.compile off), or, where eager is wrong too, of the fixed twin. Named is the first "
        "divergence, with the ops that its kernel computes as well. The fixed twin is compared in "
        "the same way: it must be SAME."
    )
    return Table("silent", HEADINGS, rows, how)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
