"""Names are shown as they are: no markup, no control characters, no broken lines, no formulas."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dumpcmp.dumping.capturing import capture
from dumpcmp.report.escaping import as_cell, visible

DUMPCMP = [sys.executable, "-m", "dumpcmp"]
SIDES = ("--golden-path", "golden", "--my-path", "mine")
MARKUP, CONTROL, FORMULA, LONG = "user[/item]", "a\x1b[31mb\nSAME\u202e", "=1+1[red]", "long" * 60
NAMES = (MARKUP, CONTROL, FORMULA, LONG)


class Named(nn.Module):
    """Runs a Linear of each name, with its weight times `factor`."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in NAMES:
            linear = nn.Linear(8, 8)
            linear.weight.data *= factor
            self.add_module(name, linear)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(module(x) for module in self.children())


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("names")
    for side, factor in (("golden", 1.0), ("mine", 2.0)):
        model = Named(factor)
        with capture(model, room / side):
            model(torch.ones(2, 8))
    return room


def run(room: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DUMPCMP, *arguments], cwd=room, capture_output=True, text=True,
        env=os.environ | {"FORCE_COLOR": ""},
    )  # fmt: skip


def comparing(room: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without replay, for which torch is imported, and which is the same to names."""
    return run(room, "compare", *SIDES, "--replay", "off", *options)


COMMANDS = [
    ("show", "golden"),
    ("compare", *SIDES, "--replay", "off", "--output", "[/b]"),
    ("compare", *SIDES, "--replay", "off", "--output", "e", "--layer", "[=]*"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=["show", "compare", "layer"])
def test_names_are_shown_as_they_are(room: Path, arguments: tuple[str, ...]) -> None:
    done = run(room, *arguments)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert "\nSAME" not in done.stdout
    for name in (FORMULA,) if "--layer" in arguments else NAMES:
        assert visible(name).partition("/")[0] in done.stdout


def test_piped_lines_are_not_broken(room: Path) -> None:
    told = comparing(room, "--output", "deep/" * 40).stdout
    assert f"report: {'deep/' * 40}compare.csv\n" in told
    assert f"{LONG}#0 param.weight" in told
    assert all(len(line) < 1000 for line in told.splitlines()), "no line is filled up with blanks"


def test_audit_shows_names_as_they_are(room: Path) -> None:
    told = run(room, "audit", str(room / "golden" / "[/red]nothing")).stderr
    assert "[/red]nothing" in told and "Traceback" not in told


def test_errors_show_names_as_they_are(room: Path) -> None:
    done = run(room, "show", "golden", "[/red]\x1b[31m")
    assert done.returncode == 2 and "[/red]" in done.stderr and "\x1b" not in done.stderr


def test_no_cell_of_the_csv_is_a_formula_and_json_has_the_names(room: Path) -> None:
    comparing(room, "--output", "cells", "--format", "csv,json")
    with (room / "cells" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    ops = {row["op"] for row in rows}
    assert f" {FORMULA}" in ops and MARKUP.partition("/")[0] in {op.partition("/")[0] for op in ops}
    texts = ("model", "op", "slot", "cause", "reason", "my_op", "source")
    found = [row.get(name, "") for row in rows for name in texts]
    assert not [cell for cell in found if cell[:1] in tuple("=+-@\t\r")]
    assert any(float(row["golden_min"] or 0) < 0 for row in rows), "numbers stay numbers"
    told = json.loads((room / "cells" / "compare.json").read_text())["rows"]
    assert CONTROL in {row["op"] for row in told}


def test_a_second_report_is_named(room: Path) -> None:
    comparing(room, "--output", "twice")
    assert "report: twice/compare-2.csv\n" in comparing(room, "--output", "twice").stdout


CELLS = {"=1": " =1", "-x": " -x", "@a": " @a", "+": " +", "\t=1": "\\t=1", "a=1": "a=1", "": ""}


@pytest.mark.parametrize("text", CELLS)
def test_a_cell_begins_with_no_sign_of_a_formula(text: str) -> None:
    assert as_cell(text) == CELLS[text]


SHOWN = {"a\x1b[31m": "a\\x1b[31m", "é [red]": "é [red]", "\ud800": "\\ud800", "a\nb": "a\\nb"}


@pytest.mark.parametrize("text", SHOWN, ids=ascii)
def test_what_does_not_print_is_spelled_out(text: str) -> None:
    assert visible(text) == SHOWN[text] and visible(text, keep=text) == text
