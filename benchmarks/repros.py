"""Repros of planted faults: made, run in a fresh virtual environment, and how long they are."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import dumpcmp
from benchmarks import compiled_faults
from benchmarks.cases import FAULTS
from benchmarks.compiled import Case
from benchmarks.faults import dumped
from benchmarks.partitioned import corpus as partitioned
from benchmarks.partitioned.campaign import place
from benchmarks.partitioned.table import run_goldens, run_ranks
from benchmarks.publicbugs import corpus as publicbugs
from benchmarks.subjects import SUBJECTS
from benchmarks.tables import Table
from dumpcmp.dumping.programs import dump
from dumpcmp.reproducing import Repro, repro

PYTHON = "DUMPCMP_FRESH_PYTHON"  # of an environment with torch and numpy alone; else one is made


@dataclass(frozen=True)
class Fresh:
    """An interpreter that has torch and numpy, and not this package."""

    python: str

    @classmethod
    def made(cls, room: Path) -> Fresh:
        if python := os.environ.get(PYTHON):
            return cls(python)
        subprocess.run([sys.executable, "-m", "venv", str(room / "fresh")], check=True)
        python = str(room / "fresh" / "bin" / "python")
        wanted = [f"torch=={torch.__version__}", "numpy"]
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        return cls(python)

    def verdict(self, made: Repro) -> str:
        """Whether the script fails by its assertion, and passes with the right op."""
        as_is = self._run(made, [])
        right = self._run(made, ["--right"])
        fails = as_is.returncode == 1 and "AssertionError" in as_is.stderr
        words = ["fails" if fails else "does not fail", "passes" if not right.returncode else "no"]
        return ", ".join(words)

    def _run(self, made: Repro, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        several = [*ranks, str(made.case.num_ranks)] if made.case.num_ranks > 1 else []
        command = [self.python, "-I", *several, str(made.path / "repro.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)


RIGHT = "fails, passes"


@dataclass(frozen=True)
class Planted:
    """A fault of a corpus: the dump that has it, and golden's."""

    corpus: str
    name: str
    mine: Path
    golden: Path


def line(one: Planted, room: Path, fresh: Fresh) -> list[str]:
    """What comes of one fault."""
    outcome = dumpcmp.compare(one.golden, one.mine)
    told = [one.corpus, one.name, outcome.conclusion.name]
    if not outcome.failures:
        return [*told, "-", "-", "-", "-", "-"]
    try:
        made = repro(one.mine, one.golden, path=room / "repro", overwrite=True, outcome=outcome)
    except dumpcmp.DumpcmpError as error:
        return [*told, f"none: {error.message[:110]}", "-", "-", "-", "-"]
    shown, lines = made.case.shown.value, str(made.num_lines)
    return [*told, made.case.kind.value, shown, lines, str(made.nbytes), fresh.verdict(made)]


def of_faults(room: Path) -> Iterator[Planted]:
    for subject in SUBJECTS.values():
        for dtype in ("float32", "bfloat16"):
            golden = dumped(subject, room / f"{subject.name}-{dtype}", dtype=dtype)
            for case in FAULTS[subject.name]:
                if dtype in case.dtypes:
                    mine = dumped(subject, room / "mine", case.plant, dtype)
                    name = f"{subject.name} {dtype}: {case.name}"
                    yield Planted("faults", name, mine, golden)
                    shutil.rmtree(mine)


def of_compiled_faults(room: Path) -> Iterator[Planted]:
    for dtype in (torch.float32, torch.bfloat16):
        for fault in compiled_faults.FAULTS:
            kept = room / f"{dtype}-{fault.backward}"
            step = Case("demo decoder", dtype, fault.backward, "").subject().step
            if not kept.exists():
                dump(step, kept, mode="fx", backward=fault.backward)
            step = Case("demo decoder", dtype, fault.backward, "").subject().step
            with fault.plant():
                dump(step, room / "mine", mode=dumpcmp.Compiled(), backward=fault.backward)
            name = f"{str(dtype).removeprefix('torch.')}: {fault.name}"
            yield Planted("compiled-faults", name, room / "mine", kept)
            shutil.rmtree(room / "mine")


def of_partitioned(room: Path) -> Iterator[Planted]:
    wanted = os.environ.get("SUBJECTS", ",".join(partitioned.SUBJECTS)).split(",")
    run_goldens(room, wanted)
    for name in wanted:
        subject = partitioned.ALL[name]
        run_ranks(room, [name])
        for fault in subject.faults:
            run = f"{name}:{fault.fault}"
            golden = room / f"golden-{subject.golden}"
            yield Planted("partitioned", run, room / place(run), golden)


def of_publicbugs(room: Path) -> Iterator[Planted]:
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.publicbugs.dumping", str(room)]
    for name in publicbugs.names():
        subprocess.run([*words, name], check=True)
        if (room / name / "mine").exists():
            kind = publicbugs.load(name).kind
            yield Planted(
                "publicbugs", f"{kind}: {name}", room / name / "mine", room / name / "golden"
            )
        shutil.rmtree(room / name)


CORPORA = {
    "faults": of_faults,
    "compiled-faults": of_compiled_faults,
    "partitioned": of_partitioned,
    "publicbugs": of_publicbugs,
}


def table() -> Table:
    """Every fault of the corpora; `REPROS` names some of them."""
    torch.set_num_threads(1)
    wanted = os.environ.get("REPROS", ",".join(CORPORA)).split(",")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as room:
        fresh = Fresh.made(Path(room))
        for corpus in wanted:
            for one in CORPORA[corpus](Path(room)):
                rows.append(line(one, Path(room), fresh))
                print("| " + " | ".join(rows[-1]) + " |", file=sys.stderr, flush=True)
    found = [row for row in rows if row[4] != "-"]
    good = sum(row[-1] == RIGHT for row in found)
    lines = statistics.median([int(row[5]) for row in found] or [0])
    nbytes = statistics.median([int(row[6]) for row in found] or [0])
    different = sum(row[2] != "SAME" for row in rows)
    return Table(
        "repros",
        ("corpus", "fault", "conclusion", "kind", "shown", "lines", "bytes", "in a fresh env"),
        rows,
        f"{good} of {different} faults that compare finds have a repro that fails as it stands "
        f"and passes with the right op; median {lines:.0f} lines, {nbytes:.0f} bytes.",
    )
