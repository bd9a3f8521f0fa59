"""dumpcmp by its commands: dump, dump, compare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.publicbugs.corpus import Bug, Program
from benchmarks.publicbugs.grading import Answer, Place, Says
from benchmarks.publicbugs.running import Ran, run

SAYS = {0: Says.SAME, 1: Says.DIFFERENT, 2: Says.UNDECIDED}


class DumpAndCompare:
    name = "dumpcmp"

    def fits(self, _bug: Bug) -> bool:
        return True

    def answer(self, golden: Program, target: Program, room: Path, result: Path) -> Answer:
        archives, seconds = [], 0.0
        for program in (golden, target):
            archives.append(room / f"dump-{program.label}-{program.ranks}")
            if not archives[-1].exists():
                ran = dumped(
                    program, archives[-1], room, result if program is target else room / "right"
                )
                seconds += ran.seconds
                if ran.status:
                    return Answer(Says.CRASHED, text=_last(ran.stderr), commands=3, seconds=seconds)
        report = room / f"report-{target.label}"
        words = ["--golden-path", str(archives[0]), "--my-path", str(archives[1])]
        ran = run(["dumpcmp", "compare", *words, "--format", "json", "--output", str(report)], room)
        told = report / "compare.json"
        seconds += ran.seconds
        if ran.status not in SAYS or not told.exists():
            says = (
                Says.UNDECIDED
                if ran.status == 2 and "Traceback" not in ran.stderr
                else Says.CRASHED
            )
            return Answer(says, text=_last(ran.stderr), commands=3, seconds=seconds)
        held = json.loads(told.read_text())
        return Answer(
            SAYS[ran.status],
            _places(held, ran.stdout) if ran.status else (),
            held["word"],
            3,
            seconds,
        )


def dumped(program: Program, path: Path, room: Path, result: Path) -> Ran:
    """Dump a program as its kind asks for."""
    mode = "compiled" if program.compiled else "eager"
    words = ["dumpcmp", "dump", "--mode", mode, "--path", str(path)]
    words += ["--backward"] if program.trains else []
    env = {"PUBLICBUGS_RESULT": str(result)}
    return run([*words, "-m", *program.arguments], room, program.ranks, env)


def _places(report: dict[str, Any], printed: str) -> list[Place]:
    """The first divergence, and the ops that the same kernel computes and does not store."""
    row = report["first_divergence"]
    told = f"{report['word']} {(row or {}).get('reason', '')}"
    ranks = tuple(
        sorted(_numbers(match) for match in re.findall(r"wrong: ranks? ([\d, -]+)", told))
    )
    flat = tuple(dict.fromkeys(number for group in ranks for number in group))
    if row is None:
        return _from_words(report["word"], flat)
    effect = re.match(r"DIFFERENT \w+ at token \d+: (?:\w+: )?(\S+) is ", report["word"])
    slot = effect[1] if effect else row["slot"]
    first = _place(str(row["op"]), slot, flat, row["token"])
    also = re.search(r"computes it together with ([^\n]+)", printed)
    others = (
        []
        if also is None
        else [Place(word.strip().rpartition("/")[2]) for word in also[1].split(",")]
    )
    mine = re.search(r"(?:^| )(\S+?)#\d+", str(row.get("my_op") or ""))
    named = [] if mine is None else [_place(mine[1], "", flat, row["token"])]
    return [first, *named, *others]


def _place(name: str, value: str, ranks: tuple[int, ...], step: int | None) -> Place:
    """Take `layers.0.up/linear` apart; without a function it is the module's own value."""
    module, slash, op = name.rpartition("/")
    if not slash:
        module, op = op, ""
    return Place(op, module.replace("<root>", ""), value, ranks, step)


def _from_words(word: str, ranks: tuple[int, ...]) -> list[Place]:
    """The place that a line names: `the first is model[0] norm/layer_norm#0 output.0`, `at ...`."""
    step = re.search(r"(?:token|step) (\d+)|the first is \w+\[(\d+)\]", word)
    number = None if step is None else int(step[1] or step[2])
    value = re.search(r"the first is \S+ (\S+?)#\d+ (\S+)", word)
    if value:
        return [_place(value[1], value[2], ranks, number)]
    at = re.search(r"(?:at|of|:) ([^\s:]*[\w\]])", word)
    return [Place(value=at[1] if at else word, ranks=ranks, step=number)]


def _numbers(words: str) -> tuple[int, ...]:
    found: list[int] = []
    for word in words.replace(" ", "").strip(",-").split(","):
        low, _, high = word.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _last(text: str) -> str:
    return text.strip()[-600:]
