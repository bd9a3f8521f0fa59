"""Answers: short to look at, true only where something was compared and nothing failed."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from dumpcmp.nouns.errors import VerificationError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import SHOWN, Conclusion, Outcome, Tally, tally
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Judgement, Metrics, Row, Verdict, Why


def rows(count: int, verdict: Verdict = Verdict.PASS) -> tuple[Row, ...]:
    judgement = Judgement(verdict, "rel_l2 0.1 is above 1e-06; " * 40)
    keys = (
        Key("Model", n // 100, f"layers.{n}.mlp<b>/linear", 0, "output.0") for n in range(count)
    )
    found = Metrics(count=4, equal=verdict is Verdict.PASS, rel_l2=0.1)
    return tuple(Row(key, n, judgement, found) for n, key in enumerate(keys))


SAME, FAILING = Outcome(rows(3)), rows(3, Verdict.FAIL)
ROOTS = tuple(replace(row, root=True) for row in FAILING[:1])
DIFFERENT = Outcome((*rows(2), *FAILING), ROOTS)
UNPAIRED = Outcome(rows(2, Verdict.UNPAIRED))


@pytest.mark.parametrize("make", [
    lambda: Outcome(rows(10_000)),
    lambda: Outcome(rows(10_000, Verdict.FAIL)),
    lambda: Outcome(FAILING, roots=rows(1000, Verdict.FAIL)),
], ids=["same", "different", "many roots"])  # fmt: skip
def test_the_repr_is_short_however_many_rows_there_are(make: Callable[[], Outcome]) -> None:
    outcome = make()
    assert len(repr(outcome)) < 5000 and "and " in repr(outcome)
    assert outcome._repr_html_().count("<tr>") == SHOWN + 1


CASES = [
    (SAME, True, 0, "SAME"),
    (DIFFERENT, False, 1, "WRONG at layers.0.mlp<b>/linear (call 0, token 0): rel_l2 0.1"),
    (UNPAIRED, False, 2, "UNKNOWN: nothing was compared (2 UNPAIRED)"),
    (Outcome(()), False, 2, "UNKNOWN: nothing was compared (no rows)"),
]


@pytest.mark.parametrize(
    "outcome, passed, code, said", CASES, ids=["same", "fail", "alone", "none"]
)
def test_an_answer_is_true_where_all_is_well(
    outcome: Outcome, passed: bool, code: int, said: str
) -> None:
    assert (bool(outcome), outcome.passed, outcome.exit_code) == (passed, passed, code)
    assert repr(outcome).startswith(said)


def told(verdict: Verdict, why: Why = Why.PLAIN, op: str = "a/mul", apart: bool = True) -> Row:
    found = Metrics(count=4, equal=not apart, num_finite=4, rel_l2=0.1 * apart)
    origin = Origin.UNKNOWN if apart else Origin.EQUAL
    key = Key("Model", 2, op, 1, "output.0")
    return Row(key, 0, Judgement(verdict, "so it is", why=why, origin=origin), found)


SAME_BITS, NEAR = told(Verdict.PASS, apart=False), told(Verdict.PASS)
DOUBT = told(Verdict.INCONCLUSIVE)
RESULT_IN_DOUBT = told(Verdict.INCONCLUSIVE, op="<root>")
GRADIENT = replace(NEAR, key=Key("Model", 2, "a", 0, "grad.weight"))
CONCLUSIONS: list[tuple[str, tuple[Row, ...], tuple[Row, ...], Conclusion, str]] = [
    ("bits", (SAME_BITS,), (), Conclusion.SAME, "SAME: everything compared is the same, bit"),
    ("near", (SAME_BITS, NEAR), (), Conclusion.SAME, "SAME: everything compared agrees within"),
    ("flip", (NEAR, told(Verdict.FLIP)), (), Conclusion.DECISIONS,
     "SAME, DIFFERENT DECISIONS: every op is right; 1 of them chose otherwise, first a/mul"),
    ("leaf", (NEAR,), (told(Verdict.FAIL, Why.LEAF),), Conclusion.PROGRAM,
     "DIFFERENT PROGRAM at a/mul (call 1, token 2): so it is"),
    ("call", (NEAR,), (told(Verdict.FAIL, Why.CALL),), Conclusion.PROGRAM, "DIFFERENT PROGRAM at"),
    ("op", (NEAR,), (told(Verdict.FAIL, Why.INTRODUCED),), Conclusion.WRONG, "WRONG at a/mul"),
    ("unreadable", (NEAR, told(Verdict.ERROR)), (), Conclusion.UNKNOWN,
     "UNKNOWN: 1 value could not be judged, the first is Model[2] a/mul#1 output.0: so it is"),
    ("much in doubt", (NEAR, DOUBT), (), Conclusion.UNKNOWN, "UNKNOWN: 1 value could not"),
    ("doubt that the end dispels", (NEAR, DOUBT, told(Verdict.PASS, op="<root>")), (),
     Conclusion.SAME, "SAME"),
    ("little doubt", (*[NEAR] * 20, DOUBT), (), Conclusion.SAME, "SAME"),
    ("a result in doubt", (*[NEAR] * 20, RESULT_IN_DOUBT), (), Conclusion.UNKNOWN,
     "UNKNOWN: 1 value could not"),
    ("a result that gradients vouch for", (*[NEAR] * 20, RESULT_IN_DOUBT, GRADIENT), (),
     Conclusion.SAME, "SAME"),
]  # fmt: skip


@pytest.mark.parametrize(
    "rows, roots, conclusion, said", [c[1:] for c in CONCLUSIONS], ids=[c[0] for c in CONCLUSIONS]
)
def test_the_conclusion_answers_in_the_terms_of_its_reader(
    rows: tuple[Row, ...], roots: tuple[Row, ...], conclusion: Conclusion, said: str
) -> None:
    outcome = Outcome((*rows, *roots), roots)
    assert outcome.conclusion is conclusion and outcome.headline.startswith(said)
    assert outcome.exit_code == conclusion.exit_code


def test_what_does_not_pass_raises_with_its_worst_rows() -> None:
    SAME.raise_for_status()
    with pytest.raises(VerificationError, match=r"(?s)WRONG at .* FAIL; rel_l2"):
        Outcome(FAILING, ROOTS).raise_for_status()
    with pytest.raises(VerificationError, match="nothing was compared"):
        Outcome(()).raise_for_status()


def test_the_message_begins_with_where_it_began() -> None:
    last = replace(FAILING[-1], root=True)
    _, first, more = Outcome(FAILING, (last,)).message().splitlines()
    assert first.startswith(f"  {last.key}: FAIL") and more == "  and 2 more"


def test_html_escapes_what_the_model_is_called() -> None:
    page = Outcome(FAILING, ROOTS, ("<script>",))._repr_html_()
    assert "mlp&lt;b&gt;" in page and "<b>" not in page and "<script>" not in page


def test_tallies_add_and_count_what_was_compared() -> None:
    both = tally(DIFFERENT.rows) + tally(UNPAIRED.rows)
    assert both == Tally({Verdict.PASS: 2, Verdict.FAIL: 3, Verdict.UNPAIRED: 2})
    assert (both.total, both.compared) == (7, 5)
    assert math.isnan(Judgement(Verdict.PASS).limit)
