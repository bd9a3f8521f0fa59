"""Every row of docs/seeds.md has a command, and each of them does what it says."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dumpcmp.cli import main
from tests.docs.test_blocks import PAGES, ROOT, room

PAGE = ROOT / "docs" / "seeds.md"
ROW = re.compile(r"^\| (?P<ability>.+?) \| `(?P<command>.+)` \| (?P<answer>.+) \|$", re.MULTILINE)
GRAPH = ROOT / "tests" / "partitioning" / "data" / "nnscaler_linear_relu.ckp"
MOST_DIFFERENT = 8  # rows that do what they do in another way, on purpose
__all__ = ["room"]


RANKS = "--backend gloo"


@pytest.mark.parametrize(
    "on_ranks", [False, pytest.param(True, marks=pytest.mark.long, id="on ranks")]
)
def test_every_ability_has_a_command_that_does_it(room: Path, on_ranks: bool) -> None:
    shutil.copy(GRAPH, room / "graph.ckp")
    names: dict[str, Any] = {"__name__": "__main__"}
    (setup,) = (block for block in PAGES["docs/seeds.md"] if block.language == "python")
    exec(compile(setup.text, str(setup), "exec"), names)
    for row in ROW.finditer(PAGE.read_text()):
        if (RANKS in row["command"]) == on_ranks:
            _follow(row["ability"], row["command"], names)


def _follow(ability: str, command: str, names: dict[str, Any]) -> None:
    if not command.startswith("dumpcmp "):
        exec(compile(command, ability, "exec"), names)
        return
    done = CliRunner().invoke(main, shlex.split(command, comments=True)[1:])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    expected = int(command.partition("# exit ")[2] or 0)
    assert done.exit_code == expected, f"{ability}: {command}\n{done.output}"


def test_the_page_has_a_row_for_each_ability_of_the_documents() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| ability", "|---"))]
    found = list(ROW.finditer(PAGE.read_text()))
    assert len(found) == len(rows) >= 53
    answers = [row["answer"].partition(";")[0].partition(":")[0].strip() for row in found]
    known = ("works", "more", "differs", "another name")
    assert all(answer.startswith(known) for answer in answers)
    assert sum(answer.startswith(("differs", "another")) for answer in answers) <= MOST_DIFFERENT
