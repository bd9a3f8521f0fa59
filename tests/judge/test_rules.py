"""The judge of pairs: which rule has a say, and in what order."""

import pytest

from dumpcmp.judge import Conditions, Evidence, RoundingChecker, judge_all
from dumpcmp.judge.checkers import Fp64Checker
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import NO_KERNEL
from dumpcmp.nouns.row import (
    UNMEASURED,
    Following,
    LaidOut,
    Measured,
    Metrics,
    Pair,
    PairedBy,
    Trouble,
    Verdict,
    Why,
)
from dumpcmp.nouns.value import DTYPES

CONDITIONS = Conditions(DTYPES["float32"], DTYPES["float32"])
OUTPUT, STATE = Key("M", 0, "a/mul", 0, "output.0"), Key("M", 0, "a/mul", 0, "rng.cpu")
BOTH, GENERATOR = Pair(OUTPUT, OUTPUT, PairedBy.KEY), Pair(STATE, STATE, PairedBy.KEY)
MOVED = Pair(OUTPUT, OUTPUT, PairedBy.COLLECTIVE)
NEAR = Measured(Metrics(4, equal=False, num_finite=4, rel_l2=1e-7))
FAR = Measured(Metrics(4, equal=False, num_finite=4, rel_l2=0.5))
SAME = Measured(Metrics(4, equal=True, num_finite=4, rel_l2=0.0))
LATE = Measured(FAR.metrics, rank=3)


def near(**noticed: str) -> Measured:
    return Measured(NEAR.metrics, laid=LaidOut(**noticed))  # type: ignore[arg-type]


def far(**noticed: object) -> Measured:
    return Measured(FAR.metrics, laid=LaidOut(**noticed))  # type: ignore[arg-type]


def troubled(trouble: Trouble) -> Measured:
    return Measured(trouble=trouble, said="so it is")


CASES = [
    ("near", BOTH, NEAR, "PASS", ""),
    ("far", BOTH, FAR, "FAIL", "rel_l2 0.5 is above"),
    ("unreadable", BOTH, troubled(Trouble.UNREADABLE), "ERROR", "so it is"),
    ("misshapen", BOTH, troubled(Trouble.SHAPE), "SHAPE", "so it is"),
    ("without a layout", BOTH, troubled(Trouble.UNSOLVED), "INCONCLUSIVE", "so it is"),
    ("in golden alone", Pair(OUTPUT, None), UNMEASURED, "UNPAIRED", "only golden has it"),
    ("in the target alone", Pair(None, OUTPUT), UNMEASURED, "UNPAIRED", "only the target has it"),
    ("fused", Pair(OUTPUT, None, inside="k3"), UNMEASURED, "FUSED", "inside k3"),
    ("removed", Pair(OUTPUT, None, inside=NO_KERNEL), UNMEASURED, "FUSED", "no kernel computes it"),
    ("a step inside", Pair(None, OUTPUT, inside="k3"), UNMEASURED, "INCONCLUSIVE", "inside the op"),
    ("another generator", GENERATOR, FAR, "INCONCLUSIVE", "different states"),
    ("the same generator", GENERATOR, SAME, "PASS", ""),
    ("a generator in golden alone", Pair(STATE, None), UNMEASURED, "SKIPPED", "only golden tells"),
    ("a replica that differs", BOTH, near(finding="rank 1 differs"), "FAIL", "rank 1 differs"),
    ("who alone has it", BOTH, far(holders="rank 2 alone has it"), "FAIL", "rank 2 alone has it"),
    (
        "a rank that stands out",
        BOTH,
        far(by_rank=((0, 1e-3), (1, 2e-3), (2, 0.1))),
        "FAIL",
        "wrong: rank 2 (rel_l2 0.1)",
    ),
    ("a remark on what passes", BOTH, near(remark="mostly in row 3"), "PASS", ""),
    ("delivered", Pair(None, OUTPUT, PairedBy.COLLECTIVE), LATE, "FAIL", "rank 3 did not get"),
]


@pytest.mark.parametrize(
    "pair, found, verdict, said", [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_judgement_on_a_pair(pair: Pair, found: Measured, verdict: str, said: str) -> None:
    judgement = judge_all([Evidence(pair, found, CONDITIONS)], RoundingChecker())[pair]
    assert judgement.verdict == verdict and said in judgement.reason
    assert (judgement.why is Why.REMOVED) == (pair.inside == NO_KERNEL)


def test_partial_terms_where_a_like_module_has_their_sum_are_a_fault() -> None:
    evidence = Evidence(BOTH, NEAR, CONDITIONS, unsummed="in layers.0.o they hold the sum")
    judgement = judge_all([evidence], RoundingChecker())[BOTH]
    assert (
        judgement.verdict is Verdict.FAIL and "in layers.0.o they hold the sum" in judgement.reason
    )


@pytest.mark.parametrize("found, verdict", [(NEAR, Verdict.INCONCLUSIVE), (FAR, Verdict.FAIL)])
def test_what_was_moved_fails_only_with_something_that_was_computed(
    found: Measured, verdict: Verdict
) -> None:
    evidence = [Evidence(MOVED, FAR, CONDITIONS), Evidence(BOTH, found, CONDITIONS)]
    assert judge_all(evidence, RoundingChecker())[MOVED].verdict is verdict


def test_a_value_that_its_checker_cannot_judge_is_inconclusive() -> None:
    judgement = judge_all([Evidence(BOTH, FAR, CONDITIONS)], Fp64Checker())[BOTH]
    assert judgement.verdict is Verdict.INCONCLUSIVE and "higher precision" in judgement.reason


@pytest.mark.parametrize(
    "rows, after, verdict",
    [(NEAR, NEAR, "PASS"), (FAR, NEAR, "COVERED"), (NEAR, FAR, "INCONCLUSIVE")],
    ids=["rows and what follows agree", "rows that differ", "rows that arrive elsewhere"],
)
def test_rows_in_another_order_pass_where_what_follows_agrees(
    rows: Measured, after: Measured, verdict: str
) -> None:
    unsolved = Measured(trouble=Trouble.UNSOLVED, said="no layout fits", by_rows=rows.metrics)
    key = Key("M", 0, "a/add", 0, "output.0")
    made = Pair(key, key, PairedBy.KEY)
    evidence = [Evidence(BOTH, unsolved, CONDITIONS), Evidence(made, after, CONDITIONS)]
    following = Following({BOTH: [made]}, frozenset(), {})
    judged = judge_all(evidence, RoundingChecker(), following=following)
    assert judged[BOTH].verdict is Verdict(verdict)
