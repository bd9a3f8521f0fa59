"""What differs between two runs besides values: command lines, environment, versions, seeds."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dumpcmp.comparing import compare
from dumpcmp.nouns.background import Background, RunTold
from dumpcmp.nouns.environment import SETTINGS, settings
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Why
from dumpcmp.report.contrasts import contrasts
from dumpcmp.report.markdown import write_markdown
from dumpcmp.report.telling import words_of
from dumpcmp.report.terminal import show

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return compare(SAMPLES / "golden", SAMPLES / "target")


def with_facts(outcome: Outcome, golden: dict[str, str], mine: dict[str, str]) -> Outcome:
    sides = (RunTold("d1", tuple(golden.items())), RunTold("d2", tuple(mine.items())))
    return replace(outcome, background=Background(*sides))


DUMP = "/bin/dumpcmp dump --path"
COMMANDS = [
    (f"{DUMP} d1 t.py", f"{DUMP} d2 --overwrite t.py", []),
    (f"{DUMP} d1 t.py", f"/env{DUMP} d2 --mode fx t.py", []),
    (f"{DUMP} d1 t.py", f"{DUMP} d2 t.py --clip 1", ["command: mine has --clip 1"]),
    (f"{DUMP} d1 t.py --lr 1", f"{DUMP} d2 t.py --lr 2",
     ["command: golden has --lr 1, mine has --lr 2"]),
    (f"{DUMP} d1 t.py", f"{DUMP} d2 u.py", ["command: golden has t.py, mine has u.py"]),
]  # fmt: skip


@pytest.mark.parametrize("golden, mine, told", COMMANDS)
def test_words_of_commands_that_differ_are_told_with_their_option(
    outcome: Outcome, golden: str, mine: str, told: list[str]
) -> None:
    assert contrasts(with_facts(outcome, {"command": golden}, {"command": mine})) == told


def test_facts_that_differ_are_told_and_those_that_always_do_are_not(outcome: Outcome) -> None:
    golden = {"versions.torch": "2.11", "seed": "1", "started": "noon", "initial_seed": "5"}
    mine = {"versions.torch": "2.13", "seed": "1", "started": "one", "initial_seed": "6",
            "environment.OMP_NUM_THREADS": "4"}  # fmt: skip
    differing = with_facts(outcome, golden, mine)
    assert contrasts(differing) == [
        "versions.torch: golden 2.11, mine 2.13",
        "environment.OMP_NUM_THREADS: golden not set, mine 4",
    ]
    first = differing.roots[0]
    leaf = replace(first, judgement=replace(first.judgement, why=Why.LEAF))
    assert "initial_seed: golden 5, mine 6" in contrasts(replace(differing, roots=(leaf,)))


def test_they_stand_in_the_terminals_answer_and_in_the_summary_of_a_pull_request(
    outcome: Outcome, tmp_path: Path
) -> None:
    facts = [{"command": f"{DUMP} d t.py", **{f"versions.v{n}": side for n in range(9)}}
             for side in ("1", "2")]  # fmt: skip
    differing = with_facts(outcome, *facts)
    console = Console(file=StringIO(), width=120)
    show(differing, console)
    assert isinstance(console.file, StringIO)
    told = console.file.getvalue()
    assert "Besides their values, the runs differ in this:\n  versions.v0: golden 1, mine 2" in told
    assert "and 1 more, in the page" in told
    written = write_markdown(differing, tmp_path / "c.md").read_text()
    assert "\n- versions.v8: golden 1, mine 2\n" in written


def test_nothing_is_told_where_the_runs_are_the_same(tmp_path: Path) -> None:
    same = compare(SAMPLES / "golden", SAMPLES / "golden")
    assert contrasts(with_facts(same, {"seed": "1"}, {"seed": "2"})) == []


def test_only_named_settings_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert settings()["OMP_NUM_THREADS"] == "3" and set(settings()) <= set(SETTINGS)


def test_numbers_that_nobody_knows_are_left_out(outcome: Outcome) -> None:
    first = outcome.roots[0]
    assert first.metrics is not None
    unknown = first.metrics._replace(max_abs_diff=float("nan"), worst=())
    rows = [replace(row, metrics=unknown) if row is first else row for row in outcome.rows]
    doubtful = replace(outcome, rows=rows, roots=(replace(first, metrics=unknown),))
    console = Console(file=StringIO(), width=120)
    show(doubtful, console)
    assert isinstance(console.file, StringIO)
    assert "nan at" not in console.file.getvalue() and "rel_l2 0.164" in console.file.getvalue()
    place = next(i for i, row in enumerate(outcome.rows) if row.key == first.key and row.root)
    rows[place] = replace(outcome.rows[place], metrics=unknown)
    assert "largest difference not known" in "\n".join(words_of(doubtful, place))
