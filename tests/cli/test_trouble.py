"""Whatever is no verdict ends a command with exit code 2 and one sentence: in real processes."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpcmp.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, TARGET = str(SAMPLES / "golden"), str(SAMPLES / "target")
DUMPCMP = [sys.executable, "-m", "dumpcmp"]
Done = subprocess.CompletedProcess[str]


def comparing(output: Path, *options: str, mine: str = TARGET) -> list[str]:
    """Without replay, for which torch is imported: trouble is the same."""
    sides = ["--golden-path", GOLDEN, "--my-path", mine, "--output", str(output)]
    return [*DUMPCMP, "compare", *sides, "--replay", "off", *options]


def run(command: list[str], limit: Callable[[], None] | None = None, **environment: str) -> Done:
    return subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, env=os.environ | environment
    )


def assert_told(done: Done, *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("dumpcmp: ")]
    assert len(told) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def limited(what: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (most, most))


def test_an_output_that_cannot_be_made_is_trouble_and_the_answer_is_still_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    done = run(comparing(tmp_path / "file" / "out"))
    assert_told(done, "file/out: Not a directory")
    assert "First divergence: layers.1.attn.o_proj/linear" in done.stdout


def test_an_output_without_room_is_trouble_and_leaves_no_draft(tmp_path: Path) -> None:
    done = run(comparing(tmp_path / "out"), limited(resource.RLIMIT_FSIZE, 4096))
    assert_told(done, "out/compare.csv: File too large", "make room")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_output_that_is_forbidden_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert_told(run(comparing(tmp_path / "closed")), "Permission denied", "choose another place")


PRINTING = [
    ["compare"],
    ["show", GOLDEN],
    ["--help"],
    pytest.param(["audit", GOLDEN], marks=pytest.mark.long),
    pytest.param(["show", "--help"], marks=pytest.mark.long),
]


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_standard_output_is_trouble(tmp_path: Path, arguments: list[str]) -> None:
    command = comparing(tmp_path) if arguments == ["compare"] else [*DUMPCMP, *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert_told(done, "standard output: No space left on device")


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_who_leaves_is_trouble(tmp_path: Path, arguments: list[str]) -> None:
    command = comparing(tmp_path) if arguments == ["compare"] else [*DUMPCMP, *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert_told(done, "standard output: Broken pipe")


def test_too_few_descriptors_are_trouble(tmp_path: Path) -> None:
    done = run(comparing(tmp_path, "--jobs", "2"), limited(resource.RLIMIT_NOFILE, 9))
    assert_told(done, "Too many open files", "ulimit -n")


def test_too_little_memory_is_trouble() -> None:
    """The error is raised where a command has begun; how Python comes to it differs each time."""
    assert_told(run(raising("show", "MemoryError('of 8 GB')")), "not enough memory: of 8 GB")


def raising(command: str, error: str) -> list[str]:
    """`command` on a sample, with the opening of the archive raising `error`."""
    code = f"""
import sys, click
from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main
def broken(self, path):
    raise {error}
Archive.__init__ = broken
main(["{command}", "{GOLDEN}"])
"""
    return [sys.executable, "-c", code]


def test_what_nobody_expected_is_trouble_and_says_how_to_report_it() -> None:
    command = raising("show", "ZeroDivisionError('one\\ntwo')")
    done = run(command)
    assert_told(done, "unexpected ZeroDivisionError at <string>:6: one\n", "DUMPCMP_TRACEBACK=1")
    shown = run(command, DUMPCMP_TRACEBACK="1")
    assert shown.returncode == 2 and "Traceback (most recent call last)" in shown.stderr


def test_an_exit_of_somebody_elses_code_is_no_verdict(tmp_path: Path) -> None:
    """That of 0, and in this process, for which torch is imported, that of 1."""
    for code in (0, 1):
        (tmp_path / f"leaving{code}.py").write_text(f"def build():\n    raise SystemExit({code})\n")
    command = [*DUMPCMP, "verify", "--model", "leaving0:build"]
    assert_told(run(command, PYTHONPATH=f"{tmp_path}:{SAMPLES.parent}"), "with 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        done = CliRunner().invoke(main, ["verify", "--model", "leaving1:build"])
    told = subprocess.CompletedProcess([], done.exit_code, done.stdout, done.stderr)
    assert_told(told, "with 1")


RUNS: list[object] = [
    [], None, 3, {}, {"rank": "x"}, {"world_size": [], "rank": {}}, {"run": 5},
    {"run": {"mesh": 7}},
]  # fmt: skip


@pytest.mark.parametrize("changed", RUNS, ids=json.dumps)
def test_a_damaged_run_file_is_no_difference(tmp_path: Path, changed: object) -> None:
    shutil.copytree(GOLDEN, tmp_path / "mine")
    (file,) = (tmp_path / "mine").glob("*/run.json")
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, **changed} if isinstance(changed, dict) else changed))
    done = CliRunner().invoke(main, comparing(tmp_path / "out", mine=str(tmp_path / "mine"))[3:])
    assert done.exit_code in (0, 2), done.output
    assert "Traceback" not in done.output and "unexpected" not in done.output


def held_workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of --jobs, once there are some; they stop, lest they end the work first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        found = [int(pid) for pid in children.read_text().split()]
        if workers := [pid for pid in found if b"spawn_main" in cmdline(pid)]:
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            return workers
        time.sleep(0.01)
    raise AssertionError(f"no worker was started: {process.communicate()}")


def let_go(workers: list[int]) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):  # who was killed meanwhile needs it no more
            os.kill(worker, signal.SIGCONT)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        comparing(tmp_path, "--jobs", "2"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_a_killed_worker_is_trouble(started: subprocess.Popen[str]) -> None:
    first, *others = held_workers_of(started)
    os.kill(first, signal.SIGKILL)
    let_go(others)
    assert_told(
        ended(started), "a process of --jobs ended before its work was done", "fewer --jobs"
    )


def test_an_interrupt_is_trouble(started: subprocess.Popen[str]) -> None:
    """At a terminal it goes to every process, to a worker that is just being born, too."""
    workers = held_workers_of(started)
    os.killpg(started.pid, signal.SIGINT)
    let_go(workers)
    done = ended(started)
    assert (done.returncode, done.stderr) == (2, "dumpcmp: interrupted, so there is no verdict\n")


def test_an_interrupt_of_the_imports_is_told_alike(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = run([*DUMPCMP, "compare"], PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "dumpcmp: interrupted, so there is no verdict\n")
