"""Two programs are bisected to the step in which they part, and what keeps that from being true."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main

PROGRAM = """
import sys
import torch

wrong, drifts = int(sys.argv[1]), "drifts" in sys.argv
torch.manual_seed(0)
model = torch.nn.Linear(128, 128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    x = torch.full((4, 128), float(step + 1)) / 9
    if drifts:
        x = x * (1 + torch.rand((), generator=torch.Generator().manual_seed(torch.seed())))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == wrong:
        with torch.no_grad():
            model.weight[3] *= 1.5
"""


DRAWING = """
import sys
import torch

change = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(7):
    loss = model(torch.randn(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if change == "betas" and step == 3:
        optimizer.param_groups[0]["betas"] = 0.9, 0.95
    if change == "clipped" and step >= 3:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program's path; what would be a process of its own runs in this one."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", command[2:])
        done = CliRunner().invoke(main, command[3:])
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    monkeypatch.setattr("dumpcmp.bisecting.subprocess.run", run)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def bisected(program: str, mine: str, golden: str, *options: str) -> Result:
    room = str(Path(program).with_name("room"))
    words = ["--golden", shlex.join([program, golden]), "--path", room, *options, program]
    return CliRunner().invoke(main, ["bisect", *words, *mine.split()])


@pytest.mark.parametrize("every", [pytest.param("1", marks=pytest.mark.long), "4"])
def test_the_step_is_found_and_kept_whole_and_no_other(program: str, every: str) -> None:
    told = bisected(program, "4", "99", "--every", every)
    assert told.exit_code == 1, told.output
    assert "token 5 is the first in which anything fails" in told.stderr
    assert "param.weight" in told.stdout and "command: golden has 99, mine has 4" in told.stdout
    room = Path(program).with_name("room")
    whole = Archive(room / "mine-whole")
    assert whole.steps(whole.models[0]) == (4, 5) and (room / "report" / "compare.html").exists()
    assert whole.tensor("<root>", step=5, slot="param.weight").shape == (128, 128)


def test_programs_that_are_the_same_run_once(program: str) -> None:
    room = str(Path(program).with_name("room"))
    quoted = shlex.join([program, "99"])  # mine, too, may be in quotes
    told = CliRunner().invoke(main, ["bisect", "--golden", quoted, "--path", room, quoted])
    assert told.exit_code == 0 and told.stdout.startswith("SAME")
    assert not Path(program).with_name("room").joinpath("mine-whole").exists()


def test_a_program_that_is_not_there_is_told_before_any_runs(program: str) -> None:
    told = bisected(program, "", "99", program.replace("program", "nowhere"))
    assert told.exit_code == 2 and "nowhere.py is not a file" in told.stderr
    assert "running" not in told.stderr


def test_a_program_that_draws_its_batches_as_it_runs_repeats_itself(program: str) -> None:
    Path(program).write_text(DRAWING)
    told = bisected(program, "clipped", "none")
    assert told.exit_code == 1, told.output
    assert "token 4 is the first in which anything fails" in told.stderr
    assert "only my run shows clip_grad_norm_ at token 3" in told.stdout


def test_a_setting_that_changes_as_the_program_runs_is_the_one_root(program: str) -> None:
    Path(program).write_text(DRAWING)
    told = bisected(program, "betas", "none")
    assert told.exit_code == 1, told.output
    first = "DIFFERENT training at token 3: AdamW: groups[0]['betas'][1] is 0.999 in golden, 0.95"
    assert told.stdout.startswith(first), told.stdout
    assert "Further roots" not in told.stdout and "optimizer#" not in told.stdout
    assert not Path(program).with_name("room").joinpath("mine-whole").exists()


def test_runs_that_do_not_repeat_are_told(program: str) -> None:
    told = bisected(program, "99 drifts", "99")
    assert told.exit_code == 2 and "mine computed something else at token 0" in told.stderr
    assert "--seed 0" in told.stderr


def test_what_cannot_run_is_told_by_its_own_words(program: str) -> None:
    told = bisected(program, "x", "99")
    assert told.exit_code == 2 and "invalid literal for int()" in told.stderr
    again = bisected(program, "99", "99")
    assert again.exit_code == 2 and "is not empty" in again.stderr


@pytest.mark.parametrize("words, said", [("", "is empty"), ("'x", "cannot be read")])
def test_a_golden_program_that_is_none_is_refused(program: str, words: str, said: str) -> None:
    told = CliRunner().invoke(main, ["bisect", "--golden", words, program])
    assert told.exit_code == 2 and said in told.stderr


@pytest.mark.parametrize("words", [["mcp", "--dir"], ["bisect", "--golden", "x.py", "--path"]])
def test_what_needs_this_machine_takes_no_url(words: list[str]) -> None:
    end = ["x.py"] if words[0] == "bisect" else []
    told = CliRunner().invoke(main, [*words, "s3://bucket/room", *end])
    assert told.exit_code == 2 and "is no directory of this machine" in told.stderr, told.output


@pytest.mark.long
def test_each_run_is_a_process_of_its_own(tmp_path: Path) -> None:
    train = str(Path(__file__).parents[2] / "examples" / "train.py")
    words = ["--golden", train, "--path", str(tmp_path / "room"), train, "--clip-from", "3"]
    told = CliRunner().invoke(main, ["bisect", *words])
    assert told.exit_code == 1 and "token 4 is the first" in told.stderr
    assert "command: mine has --clip-from 3" in told.stdout
