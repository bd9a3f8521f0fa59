"""A right op only passes things on: judgements in the light of what values were computed from."""

import itertools
from dataclasses import replace

import pytest

from dumpcmp.judge import Conditions, Evidence, RoundingChecker, judge_all
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.replay import Choice, Flip, Replay, Touched
from dumpcmp.nouns.row import Measured, Metrics, Pair, PairedBy, Trouble, Why
from dumpcmp.nouns.value import DTYPES

CONDITIONS = Conditions(DTYPES["bfloat16"], DTYPES["bfloat16"])
INDICES = Conditions(DTYPES["int64"], DTYPES["int64"])
EPS = 2.0**-7
SAME = Measured(Metrics(4, equal=True, num_finite=4, rel_l2=0.0))
NEAR = Measured(Metrics(4, equal=False, num_finite=4, rel_l2=EPS / 4))
FAR = Measured(Metrics(4, equal=False, num_finite=4, rel_l2=0.5))
MISSHAPEN = Measured(trouble=Trouble.SHAPE, said="golden has shape [2], the target [3]")
UNSOLVED = Measured(trouble=Trouble.UNSOLVED, said="no layout fits")

RIGHT = Replay(eps=EPS, introduced=EPS / 3, worst_row=EPS / 2, gain=0.0, amplification=1.0)
GROWN = Replay(eps=EPS, introduced=EPS / 3, amplification=9.0)
WRONG = Replay(eps=EPS, introduced=EPS * 3)
CHOSEN = Replay(choice=Choice("", 8, 1, (Flip((3,), (5,), (2,), 1e-4, 3e-4),)))
FARCHOSEN = Replay(choice=Choice("", 8, 1, (Flip((3,), (5,), (2,), 1e-1, 3e-4),)))
MISCHOSEN = Replay(choice=Choice("index 9 of 8 was chosen", 8))
UNKNOWN = Replay(unknown="a custom op without a reference")


def judged(*chain: tuple[Measured, Replay | None]) -> list[str]:
    """Verdict and origin of the outputs of ops, each of which takes what the one before gave.

    Of eight rows one is touched after another choice.
    """
    keys = [Key("M", 0, f"op{i}/f", 0, "output.0") for i in range(len(chain))]
    pairs = [Pair(key, key, PairedBy.KEY) for key in keys]
    flips = [i for i, (_, replay) in enumerate(chain) if replay is CHOSEN]
    after = min(flips, default=len(chain))
    evidence = [
        Evidence(
            pair,
            found,
            INDICES if replay and replay.choice else CONDITIONS,
            replay=replay,
            touched=Touched(8, 1, keys[after]) if i >= after else None,
        )
        for i, (pair, (found, replay)) in enumerate(zip(pairs, chain, strict=True))
    ]
    sources = {pair: (before,) for before, pair in itertools.pairwise(pairs)}
    said = judge_all(evidence, RoundingChecker(), sources)
    return [f"{said[pair].verdict} {said[pair].origin}" for pair in pairs]


CASES = [
    ("all right, and one amplifies", [(NEAR, RIGHT), (FAR, GROWN)],
     ["PASS inherited", "PASS amplified"]),
    ("what a wrong op gave out goes on", [(FAR, WRONG), (FAR, RIGHT), (FAR, RIGHT)],
     ["FAIL introduced", "FAIL inherited", "FAIL inherited"]),
    ("a fault that first looks small", [(NEAR, WRONG), (NEAR, RIGHT), (FAR, RIGHT)],
     ["FAIL introduced", "PASS inherited", "FAIL inherited"]),
    ("the same bits end it", [(FAR, WRONG), (SAME, None), (FAR, GROWN)],
     ["FAIL introduced", "PASS equal", "PASS amplified"]),
    ("two faults are two", [(FAR, WRONG), (FAR, WRONG)], ["FAIL introduced", "FAIL introduced"]),
    ("another choice is no fault", [(FAR, CHOSEN), (FAR, RIGHT)],
     ["FLIP flipped", "PASS flipped"]),
    ("other shapes after another choice", [(FAR, CHOSEN), (MISSHAPEN, RIGHT)],
     ["FLIP flipped", "PASS flipped"]),
    ("the rows that are left agree", [(FAR, CHOSEN), (NEAR, RIGHT)],
     ["FLIP flipped", "PASS flipped"]),
    ("nobody knows what was made of the rows", [(FAR, CHOSEN), (NEAR, UNKNOWN), (NEAR, RIGHT)],
     ["FLIP flipped", "INCONCLUSIVE unknown", "INCONCLUSIVE flipped"]),
    ("a choice against the margin is wrong", [(FAR, FARCHOSEN)], ["FAIL introduced"]),
    ("other shapes without one", [(NEAR, RIGHT), (MISSHAPEN, RIGHT)],
     ["PASS inherited", "SHAPE inherited"]),
    ("a wrong choice is one", [(FAR, MISCHOSEN)], ["FAIL introduced"]),
    ("nobody knows, and inputs agree", [(NEAR, RIGHT), (FAR, UNKNOWN)],
     ["PASS inherited", "FAIL unknown"]),
    ("what nobody could put together is not vouched for", [(UNSOLVED, None), (FAR, RIGHT)],
     ["INCONCLUSIVE unknown", "INCONCLUSIVE inherited"]),
    ("nobody knows, and inputs differ", [(FAR, GROWN), (FAR, UNKNOWN), (FAR, RIGHT)],
     ["PASS amplified", "INCONCLUSIVE unknown", "INCONCLUSIVE inherited"]),
]  # fmt: skip


@pytest.mark.parametrize("chain, said", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_right_op_passes_on_what_it_was_given(
    chain: list[tuple[Measured, Replay | None]], said: list[str]
) -> None:
    assert judged(*chain) == said


UNTOUCHED = replace(FAR, is_untouched=True)


@pytest.mark.parametrize("found, touched, replay, verdict, why", [
    (FAR, 8, None, "PASS", Why.OTHER),
    (FAR, 8, RIGHT, "PASS", Why.RIGHT),
    (UNTOUCHED, 1, None, "INCONCLUSIVE", Why.PLAIN),
    (NEAR, 1, None, "PASS", Why.RIGHT),
])  # fmt: skip
def test_another_choice_excuses_the_rows_that_it_touched_and_no_others(
    found: Measured, touched: int, replay: Replay | None, verdict: str, why: Why
) -> None:
    chose, taken = Key("M", 0, "a/topk", 0, "output.1"), Key("M", 0, "b/scatter", 0, "input.3")
    choice, pair = Pair(chose, chose, PairedBy.KEY), Pair(taken, taken, PairedBy.KEY)
    evidence = [
        Evidence(choice, FAR, INDICES, replay=CHOSEN),
        Evidence(pair, found, CONDITIONS, replay=replay, touched=Touched(8, touched, chose)),
    ]
    said = judge_all(evidence, RoundingChecker(), {pair: (choice,)})[pair]
    assert (said.verdict, said.why) == (verdict, why)


def test_other_arguments_are_a_fault_where_the_numbers_differ_too() -> None:
    key = Key("M", 0, "a/gelu", 0, "output.0")
    pair = Pair(key, key, PairedBy.KEY)
    cast = Measured(Metrics(4, equal=False, num_finite=4, rel_l2=0.0, max_abs_diff=0.0))
    for found, verdict in ((NEAR, "FAIL"), (SAME, "PASS"), (cast, "PASS")):
        evidence = Evidence(pair, found, CONDITIONS, call="golden calls gelu, the target relu")
        assert judge_all([evidence], RoundingChecker())[pair].verdict == verdict
