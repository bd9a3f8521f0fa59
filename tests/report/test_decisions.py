"""Choices in words: who took what instead of what, how near it was."""

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Choice, Flip, Replay
from dumpcmp.nouns.row import Judgement, Row, Verdict
from dumpcmp.report.decisions import agreements, decisions
from dumpcmp.report.terminal import Screen, show

CHOSEN = Key("M", 0, "layers.1.moe/topk", 0, "output.1")
FLIP = Flip((17,), (5,), (3,), 2e-4, 3e-4)
CHOICE = Choice("", 64, 1, (FLIP,))


def chosen(choice: Choice = CHOICE, key: Key = CHOSEN) -> Row:
    return Row(key, 0, Judgement(Verdict.FLIP), replay=Replay(choice=choice))


def said(*rows: Row) -> list[str]:
    return [sentence for one in decisions(Outcome(rows)) for sentence in one.sentences]


def test_a_flip_says_who_took_what_and_why() -> None:
    first = "token 17 took expert 3 instead of 5 at layers.1.moe/topk (margin 0.0002, noise 0.0003)"
    assert said(chosen()) == [first]


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
        show(Outcome((chosen(),)), screen)
    assert "layers.1.moe/topk#0, token 0  98.44 % of the rows agree" in shown.get()
    assert "took expert 3 instead of 5" in shown.get()
