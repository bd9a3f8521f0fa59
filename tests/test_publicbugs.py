"""The corpus of public bugs: each folder declares what it must, and cheap bugs are real here."""

import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.publicbugs import corpus
from benchmarks.publicbugs.corpus import Guilty, golden_of, load, names, target_of
from benchmarks.publicbugs.grading import Answer, Grade, Place, Says, grade, grade_twin

ROOT = Path(__file__).parents[1]
AT_LEAST = {"compiled": 15, "parallel": 15, "hugging face": 8, "training": 5}
GUILTY = Guilty(("linear",), "layers.1*", near=("gelu", "norm*"), ranks=(1,), step=2)
ANSWERS = [
    (Answer(Says.DIFFERENT, [Place("linear", "layers.1.up", "", (1,), 2)]), Grade.EXACT),
    (Answer(Says.DIFFERENT, [Place("aten.linear.default", "layers.1", "", (1,), 2)]), Grade.EXACT),
    (Answer(Says.DIFFERENT, [Place("linear", "layers.1.up", "", (0,), 2)]), Grade.REGION),
    (Answer(Says.DIFFERENT, [Place("linear", "layers.1.up", "", (1,), 1)]), Grade.REGION),
    (Answer(Says.DIFFERENT, [Place("gelu", "layers.2")]), Grade.REGION),
    (Answer(Says.DIFFERENT, [Place("layer_norm", "norm1")]), Grade.REGION),
    (Answer(Says.DIFFERENT, [Place("linear", "layers.2", "", (1,), 2)]), Grade.WRONG),
    (Answer(Says.DIFFERENT, [Place("a"), Place("b"), Place("c"), Place("gelu")]), Grade.WRONG),
    (Answer(Says.DIFFERENT), Grade.NO_PLACE),
    (Answer(Says.SAME), Grade.MISSED),
    (Answer(Says.UNDECIDED), Grade.UNDECIDED),
    (Answer(Says.DIFFERENT, [Place("linear")], is_right=True), Grade.DISTURBED),
    (Answer(Says.SAME, is_right=True), Grade.DISTURBED),
    (Answer(Says.CRASHED), Grade.CRASHED),
]


def needs_packages(name: str) -> bool:
    return "import transformers" in _text(name) or "from transformers" in _text(name)


def _text(name: str) -> str:
    return (corpus.HOME / name / "bug.py").read_text()


@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_folder_declares_what_it_must(more: bool) -> None:
    for bug in [load(name) for name in names() if needs_packages(name) is more]:
        assert bug.title and bug.seen and bug.guilty.ops, bug.name
        assert bug.url.startswith("https://"), bug.name
        assert 1 <= bug.ranks <= 4 and (bug.ranks > 1) == (bug.kind == "parallel"), bug.name
        assert "def run() ->" in (corpus.HOME / bug.name / "fixed.py").read_text(), bug.name
        assert golden_of(bug, "bug") != target_of(bug, "bug"), bug.name
        assert all(find_spec(package) for package in bug.needs), bug.name


def test_there_are_enough_of_each_kind() -> None:
    texts = [_text(name) for name in names()]
    count = Counter(kind for kind in corpus.KINDS for text in texts if f'"{kind}",' in text)
    assert len(texts) >= 60
    assert {kind: least for kind, least in AT_LEAST.items() if count[kind] < least} == {}
    assert sum("held_out=True" in text for text in texts) >= 20


def test_cheap_bugs_are_real_and_their_twins_are_right() -> None:
    words = [sys.executable, "-m", "benchmarks.publicbugs", "unsigned_levels", "first_alibi_rows"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(": real, ") == 2


@pytest.mark.parametrize("answer, expected", ANSWERS)
def test_a_grade_follows_from_the_answer_alone(answer: Answer, expected: Grade) -> None:
    assert grade(answer, GUILTY) is expected


def test_an_alarm_that_the_twin_gets_as_well_shows_nothing() -> None:
    answer, expected = ANSWERS[0]
    elsewhere = Answer(Says.DIFFERENT, [Place("relu")])
    assert grade(answer, GUILTY, answer) is Grade.BOTH
    assert grade(answer, GUILTY, elsewhere) is grade(answer, GUILTY, Answer(Says.SAME)) is expected


def test_a_twin_is_to_be_called_the_same() -> None:
    graded = [grade_twin(Answer(says)) for says in Says]
    assert graded == [Grade.QUIET, Grade.ALARM, Grade.UNDECIDED, Grade.CRASHED]
