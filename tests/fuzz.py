"""The long versions of the tests that draw at random, on all cores: ``python -m tests.fuzz``.

Each is cut into shares, which are runs of pytest with a seed of their own. A line for each test
says how many trials passed, so that a run that was stopped tells what it has shown.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Long:
    """A test at length: `total` trials, so many as `share` in one run of pytest."""

    name: str
    tests: str
    variable: str
    total: int
    share: int

    def scaled(self, scale: float) -> Long:
        """As many trials as `scale` says, at least one share of one."""
        total = max(1, round(self.total * scale))
        return Long(self.name, self.tests, self.variable, total, min(self.share, total))


MUTANTS, FAULTS = "DUMPCMP_MUTANTS", "DUMPCMP_FAULTS"
INPUTS, GRAPHS = "tests/test_fuzz_inputs.py", "tests/partitioning/test_fuzz_graphs.py"
SIGNALS, INTERRUPTS = "tests/taps/test_signals.py", "DUMPCMP_INTERRUPTS"
TESTS, MARKED = Path(__file__).parent, re.compile(r"mark\.(long|each_value_once)|choosing_cases")
ROOMS = sorted(
    {
        path.relative_to(TESTS).parts[0]
        for path in TESTS.rglob("test_*.py")
        if MARKED.search(path.read_text())
    }
)
ALL = (
    *(Long(f"cases: {room}", f"-m long tests/{room}", "DUMPCMP_CASES", 1, 1) for room in ROOMS),
    Long("at once", "tests/compacting/test_at_once.py", "DUMPCMP_SECONDS", 60, 60),
    Long("beside a writer", "tests/compacting/test_beside_a_writer.py", "DUMPCMP_SECONDS",
         3_600, 3_600),
    Long("programs", "tests/taps/test_random_programs.py", "DUMPCMP_PROGRAMS", 1_000, 60),
    Long("laws", "tests/laws/test_laws.py", "DUMPCMP_LAWS", 20_000, 200),
    Long("parts", "tests/archive/test_fuzz.py::test_a_mutant_opens_or_gives_an_archive_error",
         MUTANTS, 100_000, 2_500),
    Long("facts", f"{INPUTS}::test_facts_of_a_run", MUTANTS, 100_000, 2_500),
    Long("checkpoints", f"{GRAPHS}::test_checkpoints", MUTANTS, 100_000, 5_000),
    Long("packages", f"{GRAPHS}::test_packages", MUTANTS, 100_000, 5_000),
    Long("rings", f"{INPUTS}::test_rings_of_killed_writers", MUTANTS, 100_000, 10_000),
    Long("texts", f"{INPUTS}::test_texts_of_layouts_and_mappings", MUTANTS, 100_000, 20_000),
    Long("files", f"{INPUTS}::test_files_of_layouts_and_mappings_that_were_broken",
         MUTANTS, 100_000, 10_000),
    Long("readers", "tests/readers", MUTANTS, 60_000, 5_000),  # of each of 26
    Long("many ops", "tests/comparing/test_at_length.py::test_one_op_of_many",
         "DUMPCMP_OPS", 100_000, 100_000),
    Long("many elements", "tests/comparing/test_at_length.py::test_one_element_of_many",
         "DUMPCMP_ELEMENTS", 100_000_000, 100_000_000),
    Long("faults of writers", "tests/archive/test_faults_injected.py", FAULTS, 3_000, 300),
    Long("faults of compactors", "tests/compacting/test_faults_injected.py", FAULTS, 3_000, 300),
    Long("struck parts", "tests/archive/test_dense.py::"
         "test_a_part_with_lost_records_is_mended_and_compacted", FAULTS, 3_000, 1_000),
    Long("interrupts", f"{SIGNALS}::test_repeated_interrupts_end_a_dump", INTERRUPTS, 25, 5),
    Long("handlers and forks", f"{SIGNALS}::test_exceptions_of_handlers_are_passed_on "
         f"{SIGNALS}::test_a_handler_may_call_a_module "
         f"{SIGNALS}::test_forked_children_neither_hang_nor_write", INTERRUPTS, 5, 1),
    Long("kills", "tests/archive/test_crash.py", "DUMPCMP_KILLS", 100, 10),
    Long("killed watchers", "tests/compacting/test_crash.py::"
         "test_compactors_that_watch_a_capture_and_are_killed_leave_it_whole",
         "DUMPCMP_KILLS", 200, 20),
    Long("killed captures", "tests/dumping/test_killed_captures.py", "DUMPCMP_KILLS", 1_000, 50),
)  # fmt: skip


@dataclass(frozen=True)
class Share:
    """One run of pytest: the trials `start` to `end` of a test."""

    long: Long
    start: int
    end: int

    def passed(self, folder: Path, deadline: float, seed: int) -> str:
        """Nothing, or what pytest says; `deadline` ends it, draws begin at `seed`."""
        left = deadline - time.monotonic()
        if left < 1:
            return "not begun"
        count = {
            self.long.variable: str(self.end - self.start),
            "DUMPCMP_SEED": str(seed + self.start),
        }
        room = folder / f"{self.long.name.replace(' ', '-')}-{self.start}"
        command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-m", ""]
        command += ["--show-capture=no", f"--basetemp={room}", *self.long.tests.split()]
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | count
        try:
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=left
            )
        except subprocess.TimeoutExpired:
            return "stopped"
        finally:
            subprocess.run(["rm", "-rf", str(room)], check=False)
        return "" if ran.returncode == 0 else ran.stdout[-6_000:] + ran.stderr[-2_000:]


def shares(longs: list[Long]) -> Iterator[Share]:
    """What there is to run: something of everything first, should it be stopped."""
    cut = [[*range(0, long.total, long.share)] for long in longs]
    for turn in range(max(map(len, cut))):
        for long, starts in zip(longs, cut, strict=True):
            if turn < len(starts):
                start = starts[turn]
                yield Share(long, start, min(start + long.share, long.total))


def run_all(longs: list[Long], jobs: int, seconds: float, seed: int) -> int:
    """Run all of it within `seconds`; print each failure, and in the end the counts."""
    deadline, passed, failures = time.monotonic() + seconds, Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        begun = {pool.submit(s.passed, Path(folder), deadline, seed): s for s in shares(longs)}
        for done in as_completed(begun):
            share, said = begun[done], done.result()
            if not said:
                passed[share.long.name] += share.end - share.start
            elif said not in ("stopped", "not begun"):
                failures += 1
                print(f"FAILED {share}\n{said}", flush=True)
    for long in longs:
        print(f"{long.name:22} {passed[long.name]:>7} of {long.total} passed")
    print(f"{failures} failures, {time.monotonic() - deadline + seconds:.0f} s on {jobs} processes")
    return int(bool(failures))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--seconds", type=float, default=1e6, help="stop after so long")
    options.add_argument("--scale", type=float, default=1.0, help="how many of the trials")
    options.add_argument("--seed", type=int, default=0, help="another one draws others")
    options.add_argument("--only", default="", help="names of tests, with commas between")
    asked = options.parse_args()
    names = asked.only.split(",")
    longs = [long.scaled(asked.scale) for long in ALL if not asked.only or long.name in names]
    return run_all(longs, asked.jobs, asked.seconds, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
