"""Choices in words: who took what instead of what, how near it was, and what came of it."""

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Choice, Flip, Replay, Touched
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why
from dumpcmp.report.decisions import agreements, decisions
from dumpcmp.report.terminal import Screen, show

CHOSEN = Key("M", 0, "layers.1.moe/topk", 0, "output.1")
FLIP = Flip((17,), (5,), (3,), 2e-4, 3e-4)
CHOICE = Choice("", 64, 1, (FLIP,))
RIGHT = Judgement(Verdict.PASS, why=Why.RIGHT)


def chosen(choice: Choice = CHOICE, key: Key = CHOSEN) -> Row:
    return Row(key, 0, Judgement(Verdict.FLIP), replay=Replay(choice=choice))


def touched(number: int, judgement: Judgement = RIGHT, op: str = "layers.1.moe/mul") -> Row:
    key = Key("M", 0, op, 0, "output.0")
    return Row(key, 1, judgement, touched=Touched(64, number, CHOSEN))


def said(*rows: Row) -> list[str]:
    return [sentence for one in decisions(Outcome(rows)) for sentence in one.sentences]


def test_a_flip_says_who_took_what_and_why() -> None:
    first = "token 17 took expert 3 instead of 5 at layers.1.moe/topk (margin 0.0002, noise 0.0003)"
    after = "41 rows in 2 values after it are another computation; every op among them is right"
    assert said(chosen(), touched(40), touched(1, op="layers.1/add")) == [first, after]


def test_what_is_wrong_or_open_after_a_flip_is_said() -> None:
    wrong = touched(3, Judgement(Verdict.FAIL, why=Why.INTRODUCED))
    assert said(chosen(), wrong, touched(2))[-1].endswith("1 of the values is wrong")
    unknown = touched(3, Judgement(Verdict.INCONCLUSIVE))
    assert "could not be judged" in said(chosen(), unknown, touched(2))[-1]


def test_modules_and_inputs_are_not_counted_again() -> None:
    module = touched(40, op="layers.1.moe")
    (only,) = said(chosen(), module)
    assert "another computation" not in only


def test_ties_orders_and_plain_rows_have_their_words() -> None:
    tie = Choice("", 8, 12, (Flip((0, 3), (1, 3), (3, 1), 0.0, 0.1),))
    key = Key("M", 0, "head/sort", 0, "output.1")
    assert said(chosen(tie, key)) == [
        "row [0, 3] took the order 3, 1 instead of 1, 3 at head/sort (a tie: the scores are equal)",
        "11 more rows chose otherwise at head/sort",
    ]


def test_agreement_is_the_share_of_rows_over_all_steps() -> None:
    later = Key("M", 1, "layers.1.moe/topk", 0, "output.1")
    rows = chosen(), chosen(Choice("", 36, 4, (FLIP,)), later)
    assert agreements(Outcome(rows)) == {"layers.1.moe/topk": 0.95}


def test_the_terminal_shows_decisions() -> None:
    screen = Screen()
    with screen.capture() as shown:
        show(Outcome((chosen(), touched(41))), screen)
    assert "layers.1.moe/topk#0, token 0  98.44 % of the rows agree" in shown.get()
    assert "took expert 3 instead of 5" in shown.get()
