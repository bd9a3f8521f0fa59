"""Public bugs and their twins, looked at by each tool: a row a bug, the totals at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.publicbugs.corpus import Bug, golden_of, load, names, target_of
from benchmarks.publicbugs.grading import Answer, Grade, Says, grade, grade_twin
from benchmarks.publicbugs.reproducing import error_of, read, reproduce
from benchmarks.publicbugs.running import warm
from benchmarks.publicbugs.tools import TOOLS
from benchmarks.publicbugs.tools.adapter import Tool
from benchmarks.tables import Table

FOUND = (Grade.EXACT, Grade.REGION, Grade.WRONG, Grade.NO_PLACE)


def tools() -> list[str]:
    wanted = [word for word in os.environ.get("TOOL", "").split(",") if word]
    for word in wanted:
        if word not in TOOLS:
            sys.exit(f"no tool {word!r}; there are: {', '.join(TOOLS)}")
    return wanted or list(TOOLS)


def asked(tool: Tool, bug: Bug, file: str, room: Path, right: list[list[object]]) -> Answer:
    """What the tool answers to the bug or its twin, and whether its run was still wrong."""
    result = room / f"under-{tool.name}-{file}"
    target = target_of(bug, file)
    answer = tool.answer(golden_of(bug, file), target, room, result)
    if not Path(f"{result}.0.npz").exists():
        return answer
    error = error_of(read(result, target.ranks), right)  # type: ignore[arg-type]
    return replace(answer, is_right=error <= bug.tolerance)


def measured(name: str, wanted: list[str]) -> dict[str, object]:
    bug = load(name)
    with tempfile.TemporaryDirectory() as base:
        seen = reproduce(bug, Path(base))
    held: dict[str, object] = {"bug": name, "error": seen.error}
    for tool in (TOOLS[word] for word in wanted):
        if not tool.fits(bug):
            held[tool.name] = {"grade": Grade.NOT_FOR_IT, "twin": Grade.NOT_FOR_IT}
            continue
        with tempfile.TemporaryDirectory() as base:
            room = Path(base)
            answer = asked(tool, bug, "bug", room, seen.right)  # type: ignore[arg-type]
            twin = asked(tool, bug, "fixed", room, seen.twin_right)  # type: ignore[arg-type]
        held[tool.name] = {
            "grade": grade(answer, bug.guilty, twin),
            "twin": grade_twin(twin),
            "named": "; ".join(map(str, answer.places[:3])),
            "text": answer.text,
            "twin_text": "" if twin.says is Says.SAME else twin.text,
            "commands": answer.commands,
            "seconds": round(answer.seconds, 1),
        }
    return held


def in_one_process(part: Sequence[str]) -> list[dict[str, object]]:
    """Measure bugs one after the other; each command of theirs has a process of its own."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.publicbugs.table", *part]
    with tempfile.TemporaryDirectory() as room:
        log = Path(os.environ.get("PUBLICBUGS_LOG", Path(room, "log")))
        with log.open("a") as file:
            begin = file.tell()
        subprocess.run(words, check=False, env={**environ, "PUBLICBUGS_LOG": str(log)})
        with log.open() as file:
            file.seek(begin)
            rows = [json.loads(line) for line in file]
    return [row for row in rows if row["bug"] in part]


def main(part: Sequence[str]) -> None:
    warm()
    for name in part:
        try:
            row = measured(name, tools())
        except (AssertionError, OSError) as said:
            row = {"bug": name, "trouble": str(said)[-800:]}
        with Path(os.environ["PUBLICBUGS_LOG"]).open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def cells(bug: Bug, row: dict[str, object]) -> list[str]:
    first = f"{bug.name}{' (planted)' if bug.planted else ''}"
    every = [first, f"[{bug.thread}]({bug.url})", bug.kind]
    for name in tools():
        one = row.get(name)
        if not isinstance(one, dict):
            every.append("trouble")
        elif one["grade"] == Grade.NOT_FOR_IT:
            every.append("-")
        else:
            twin = "" if one["twin"] == Grade.QUIET else f"; twin: {one['twin']}"
            every.append(f"{one['grade']}{twin}")
    return every


def total(label: str, rows: list[dict[str, object]]) -> list[str]:
    every = [f"**{label}**", f"{len(rows)} bugs", ""]
    for name in tools():
        found = [one for row in rows if isinstance(one := row.get(name), dict)]
        found = [one for one in found if one["grade"] != Grade.NOT_FOR_IT]
        count = Counter(one["grade"] for one in found)
        twins = Counter(one["twin"] for one in found)
        seen = sum(count[grade] for grade in FOUND)
        seconds = sum(one["seconds"] for one in found) / max(1, len(found))
        every.append(
            f"{seen} of {len(found)} seen, {count[Grade.EXACT]} exact, {count[Grade.REGION]} near; "
            f"{twins[Grade.ALARM]} alarms, {count[Grade.DISTURBED]} disturbed away; {seconds:.1f} s"
        )
    return every


def table() -> Table:
    tools()  # a name that is none ends it here
    jobs = max(1, int(os.environ.get("JOBS", "2")))
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(in_one_process, [names()[job::jobs] for job in range(jobs)])
        rows = {str(row["bug"]): row for part in parts for row in part}
    return made(rows)


def made(rows: dict[str, dict[str, object]]) -> Table:
    bugs = [load(name) for name in names() if name in rows]
    shown = [
        line
        for label, held_out in (("all but those held out", False), ("held out", True))
        for part in [[bug for bug in bugs if bug.held_out is held_out]]
        if part
        for line in [
            *(cells(bug, rows[bug.name]) for bug in part),
            total(label, [rows[bug.name] for bug in part]),
        ]
    ]
    how = (
        f"torch {torch.__version__}, CPU. Each bug is first shown to be there without any tool. "
        "Then each tool looks at the bug and at its fixed twin, and one grader that does not know "
        "the tool grades the answers. Seconds are a mean over bugs, in processes that have "
        "imported torch."
    )
    return Table("publicbugs", ("bug", "thread", "kind", *tools()), shown, how)


if __name__ == "__main__":
    main(sys.argv[1:])
