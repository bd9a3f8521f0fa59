"""Reports: the CSV, JSON and DataFrame say the same, and the docs name every column."""

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from dumpcmp.cli.compare import JUDGING, MEASURING, phase_at
from dumpcmp.comparing import compare
from dumpcmp.nouns.columns import COLUMNS, Column, cells
from dumpcmp.nouns.outcome import Outcome, tally
from dumpcmp.nouns.row import Metrics, Verdict, Why
from dumpcmp.report.csvfile import write_csv
from dumpcmp.report.jsonfile import write_json
from dumpcmp.report.terminal import show

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_dumps"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return compare(SAMPLES / "golden", SAMPLES / "target")


def text_of(outcome: Outcome) -> str:
    console = Console(file=StringIO(), width=120)
    show(outcome, console, ["out/compare.csv"])
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_wrapped_line_goes_on_below_its_first_word(outcome: Outcome) -> None:
    wide = text_of(outcome)
    console = Console(file=StringIO(), width=60)
    show(outcome, console, ["out/" + "deep/" * 20 + "compare.csv"])
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  FAIL: it is")]
    first, then = lines[at], lines[at + 1]
    assert len(first) <= 60 and then.startswith("  ") and then[2] != " "
    assert f"{first} {then.strip()}"[:80] in wide
    assert lines[-1].endswith("compare.csv")  # what is copied is not broken


PHASES = [(0, 10, MEASURING, 10), (9, 10, MEASURING, 10), (10, 10, JUDGING, None)]


@pytest.mark.parametrize("done, total, phase, whole", PHASES)
def test_the_bar_names_its_phase_and_is_not_full_before_the_end(
    done: int, total: int, phase: str, whole: int | None
) -> None:
    assert phase_at(done, total) == (phase, whole)


def test_the_csv_has_a_line_for_every_row_in_order(outcome: Outcome, tmp_path: Path) -> None:
    with write_csv(outcome, tmp_path / "new" / "compare.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["op"], line["slot"]) for line in lines] == [
        (row.key.op, row.key.slot) for row in outcome.rows
    ]
    assert list(lines[0]) == [*(column.name for column in COLUMNS), "kl_divergence"]


def test_csv_json_and_dataframe_say_the_same(outcome: Outcome, tmp_path: Path) -> None:
    frame = outcome.to_pandas()
    again = pd.read_csv(write_csv(outcome, tmp_path / "c.csv"))
    rows = json.loads(write_json(outcome, tmp_path / "c.json").read_text())["rows"]
    for name in ("rel_l2", "max_abs_diff", "golden_norm", "mismatched"):
        assert again[name].to_list() == pytest.approx(frame[name].to_list(), nan_ok=True)
        told = [math.nan if row[name] is None else float(row[name]) for row in rows]
        assert told == pytest.approx(frame[name].astype(float).to_list(), nan_ok=True)
    assert again["verdict"].to_list() == frame["verdict"].to_list()


def test_json_tells_the_first_divergence_first(outcome: Outcome, tmp_path: Path) -> None:
    told = json.loads(write_json(outcome, tmp_path / "c.json").read_text())
    assert told["first_divergence"]["op"] == "layers.1.attn.o_proj/linear"
    assert told["exit_code"] == 1 and told["tally"]["FAIL"] == outcome.tally[Verdict.FAIL]


def test_a_report_is_replaced_whole(outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "compare.csv"
    path.write_text("what was here before")
    write_csv(outcome, path)
    assert "before" not in path.read_text() and list(tmp_path.iterdir()) == [path]


def test_every_failing_row_is_a_root_or_names_its_cause(outcome: Outcome) -> None:
    failing = [row for row in outcome.rows if row.verdict.fails]
    assert failing and all(row.root != (row.cause is not None) for row in failing)
    assert {row.cause for row in failing if row.cause} <= {row.key for row in outcome.roots}


TOLD = [
    "WRONG at layers.1.attn.o_proj/linear (call 0, token 0): it is 0.164 off",
    "720 of 720 values paired",
    "First divergence: layers.1.attn.o_proj/linear",
    "dumpcmp/demo.py:",
    "in float64, on what my side was given, golden's op gives something else",
    "introduced",
    "Further roots",
    "Worst values",
    "report: out/compare.csv",
]


@pytest.mark.parametrize("words", TOLD)
def test_the_summary_tells(outcome: Outcome, words: str) -> None:
    shown = " ".join(text_of(outcome).split())
    number = f"{len(outcome.rows)} of {len(outcome.rows)} values paired"
    assert words.replace("720 of 720 values paired", number) in shown


def test_of_inputs_that_nobody_recorded_nothing_is_said(outcome: Outcome) -> None:
    """An op whose inputs are not among the rows, and which was not run again, is only the first."""
    root = replace(outcome.roots[0], judgement=replace(outcome.roots[0].judgement, why=Why.PLAIN))
    outputs = [row for row in outcome.rows if not row.key.slot.is_input]
    told = "its inputs were not recorded"
    assert told in text_of(replace(outcome, roots=[root], rows=outputs))
    shown = text_of(replace(outcome, roots=[root]))
    assert told not in shown and "its inputs agree" in shown


def test_the_same_run_is_the_same() -> None:
    same = compare(SAMPLES / "golden", SAMPLES / "golden")
    assert same.exit_code == 0 and same.first_divergence is None
    assert "SAME" in text_of(same)


def test_nothing_compared_is_trouble() -> None:
    assert Outcome(()).exit_code == 2
    assert "UNKNOWN" in text_of(Outcome(()))


def test_tallies_add(outcome: Outcome) -> None:
    half = len(outcome.rows) // 2
    assert tally(outcome.rows[:half]) + tally(outcome.rows[half:]) == outcome.tally


def test_every_metric_that_is_measured_is_reported(outcome: Outcome) -> None:
    names = {column.name for column in COLUMNS}
    apart = {"equal", "num_finite", "nonfinite_agree", "golden", "target", "exact", "sample"}
    assert {*Metrics._fields} - apart <= names


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_the_docs_explain_every_column(column: Column) -> None:
    page = (ROOT / "docs" / "reports.md").read_text().replace("\\|", "|")
    assert f"| `{column.name}` | {column.doc} |" in page, "run: python docs/build_columns.py"


def test_cells_are_plain_values(outcome: Outcome) -> None:
    for row in (outcome.rows[0], outcome.roots[0]):
        assert all(isinstance(cell, str | int | float | None) for cell in cells(row).values())


def test_the_quickstart_shows_what_the_samples_give(outcome: Outcome) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    failing = sum(row.verdict.fails for row in outcome.rows)
    assert f"{len(outcome.rows)} of {len(outcome.rows)} values paired" in page
    assert f"{failing} FAIL" in page and f"{failing - len(outcome.roots)} of them only" in page


def test_a_table_for_people_begins_with_what_they_read_and_has_no_empty_columns(
    outcome: Outcome, tmp_path: Path
) -> None:
    path = write_csv(outcome, tmp_path / "narrow.csv", all_columns=False)
    narrow, wide = pd.read_csv(path), pd.read_csv(write_csv(outcome, tmp_path / "wide.csv"))
    assert list(narrow.columns)[:10] == list(wide.columns)[:10] == [
        "token", "op", "verdict", "cosine", "max_abs_diff", "max_rel_err", "rel_l2", "dtype",
        "shape", "reason",
    ]  # fmt: skip
    kept = [name for name in wide.columns[10:] if wide[name].notna().any()]
    assert list(narrow.columns)[10:] == kept and len(kept) < len(wide.columns) - 10
    assert narrow.equals(wide[narrow.columns])
    assert list(tmp_path.glob("*.narrow")) == []


def test_a_row_an_op_is_that_of_its_worst_value(outcome: Outcome, tmp_path: Path) -> None:
    lines = pd.read_csv(write_csv(outcome, tmp_path / "ops.csv", per_op=True))
    rows = outcome.to_pandas()
    sites = ["model", "token", "op", "call"]
    assert lines[sites].values.tolist() == rows[sites].drop_duplicates().values.tolist()
    failing = rows[rows["verdict"] == "FAIL"].groupby(sites)["rel_l2"].max()
    told = lines[lines["verdict"] == "FAIL"].set_index(sites)["rel_l2"].sort_index()
    assert len(failing) and told.to_list() == pytest.approx(failing.sort_index().to_list())
