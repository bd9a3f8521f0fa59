"""What was made of a value that one side alone has, where a compiler stores no result of it."""

from __future__ import annotations

import pytest

from dumpcmp.align.followers import followers
from dumpcmp.align.listing import Listing
from dumpcmp.judge.covering import cover
from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import NO_KERNEL, Call, Record
from dumpcmp.nouns.row import Judgement, Pair, PairedBy, Verdict, Why

RESULT, MADE, TAKEN = (
    Key("M", 0, op, 0, slot)
    for op, slot in ((ROOT, "output.0"), ("a/sin", "output.0"), ("a/slice", "input.0"))
)


def run(kernel: str) -> Listing:
    """A result, a value on the way, and a call that took it and whose own result is not stored."""
    values = {
        RESULT: (Record(RESULT, 0, "float32", (2,), digest="1"),),
        MADE: (Record(MADE, 1, "float32", (2,), digest="2"),),
        TAKEN: (Record(TAKEN, 2, "float32", (2,), digest="2", same_as=MADE),),
    }
    call = Call("M", 0, Op("a/slice"), 0, 2, "aten.slice", kernel=kernel)
    return Listing(values, {call.site: call})


@pytest.mark.parametrize(
    "kernel, result, expected",
    [
        (NO_KERNEL, Verdict.PASS, Verdict.COVERED),
        (NO_KERNEL, Verdict.FAIL, Verdict.UNPAIRED),
        ("", Verdict.PASS, Verdict.UNPAIRED),
    ],
)
def test_what_a_compiler_folded_into_others_is_seen_in_the_results(
    kernel: str, result: Verdict, expected: Verdict
) -> None:
    both, alone, taken = Pair(RESULT, RESULT), Pair(None, MADE), Pair(None, TAKEN)
    pairs = [both, alone, taken]
    own = {pair: Judgement(Verdict.UNPAIRED, "") for pair in (alone, taken)}
    target = run(kernel)
    found = cover({both: Judgement(result, ""), **own}, followers(pairs, target, target))
    assert {found[alone].verdict, found[taken].verdict} == {expected}


@pytest.mark.parametrize("why, expected", [
    (Why.PLAIN, "COVERED"), (Why.RIGHT, "COVERED"), (Why.OTHER, "INCONCLUSIVE"),
])  # fmt: skip
def test_what_could_not_be_compared_after_another_choice_covers_nothing(
    why: Why, expected: str
) -> None:
    both, alone, taken = Pair(RESULT, RESULT), Pair(None, MADE), Pair(None, TAKEN)
    said = {both: Judgement(Verdict.PASS, "", why=why)}
    said |= dict.fromkeys((alone, taken), Judgement(Verdict.UNPAIRED, ""))
    listing = run(NO_KERNEL)
    found = cover(said, followers([both, alone, taken], listing, listing))
    assert found[alone].verdict == expected
    assert (found[alone].why is Why.UNSHOWN) is (why is Why.OTHER)


@pytest.mark.parametrize("result, expected", [("PASS", "COVERED"), ("FAIL", None)])
def test_numbers_that_ranks_count_for_themselves_are_right_where_what_follows_is(
    result: str, expected: str | None
) -> None:
    both, own, taken = Pair(RESULT, RESULT), Pair(MADE, MADE), Pair(TAKEN, TAKEN)
    said = {both: Judgement(Verdict(result), "")}
    said |= dict.fromkeys((own, taken), Judgement(Verdict.FAIL, "another count"))
    listing = run(NO_KERNEL)
    following = followers([both, own, taken], listing, listing, lambda pair: pair is not both)
    found = cover(said, following, {own, taken})
    assert {judgement.verdict for judgement in found.values()} == (
        {expected} if expected else set()
    )
    assert not cover(said, following)  # of others a difference is one


def test_what_a_collective_moves_is_seen_where_it_arrives() -> None:
    both, alone = Pair(RESULT, RESULT), Pair(None, MADE)
    moved = Pair(MADE, TAKEN, PairedBy.COLLECTIVE)
    said = {both: Judgement(Verdict.PASS, ""), alone: Judgement(Verdict.UNPAIRED, "")}
    listing = run(NO_KERNEL)
    found = cover(said, followers([both, alone, moved], listing, listing))
    assert found[alone].verdict is Verdict.COVERED


def test_a_step_whose_result_has_no_partner_shows_nothing() -> None:
    pairs = [Pair(None, RESULT), Pair(None, MADE), Pair(None, TAKEN)]
    own = {pair: Judgement(Verdict.UNPAIRED, "") for pair in pairs}
    target = run(NO_KERNEL)
    found = cover(own, followers(pairs, target, target))
    assert {judgement.verdict for judgement in found.values()} == {Verdict.UNPAIRED}


SENT, TOOK, GRADIENT = (
    Key("M", 0, op, 0, slot)
    for op, slot in (
        ("<root>@after/send", "input.0"),
        ("b", "input.0"),
        ("a/clone", "grad_input.0"),
    )
)


@pytest.mark.parametrize(
    "digest, rank, verdict, expected",
    [
        ("1", 1, "PASS", "COVERED"),
        ("1", 1, "FAIL", "UNPAIRED"),
        ("1", 0, "PASS", "UNPAIRED"),  # nobody else has it
        ("2", 1, "FAIL", "DEAD"),  # and what was sent is something else
    ],
)
def test_what_was_sent_is_right_where_another_rank_takes_it_and_agrees(
    digest: str, rank: int, verdict: str, expected: str
) -> None:
    root = Key("M", 0, ROOT, 0, "input.0")
    origin = GRADIENT if digest == "1" else None
    records = [
        Record(root, 0, "float32", (2,), digest="0"),
        Record(GRADIENT, 1, "float32", (2,), digest=digest),
        Record(SENT, 2, "float32", (2,), digest="1", same_as=origin),
        Record(TOOK, 3, "float32", (2,), digest="1", rank=rank),
    ]
    target = Listing({record.key: (record,) for record in records}, {}, 2)
    sent, alone, took = Pair(None, SENT), Pair(None, GRADIENT), Pair(TOOK, TOOK)
    judged = {took: Judgement(Verdict(verdict), "")}
    judged |= dict.fromkeys((sent, alone), Judgement(Verdict.UNPAIRED, ""))
    found = cover(judged, followers([sent, alone, took], Listing({}), target))
    assert found.get(alone, judged[alone]).verdict is Verdict(expected)


@pytest.mark.parametrize("taking, expected", [((0,), "COVERED"), ((0, 1), "INCONCLUSIVE")])
def test_only_a_share_that_some_ranks_take_is_right_where_it_was_made(
    taking: tuple[int, ...], expected: str
) -> None:
    """What all ranks have once more may be terms, which are right in one place and not here."""
    first, again = Key("M", 0, "a/f", 0, "output.0"), Key("M", 0, "b/g", 0, "input.0")
    golden = Listing(
        {
            first: (Record(first, 0, "float32", (4,)),),
            again: (Record(again, 1, "float32", (4,), same_as=first),),
        }
    )
    target = Listing(
        {
            first: tuple(Record(first, 0, "float32", (2,), rank=rank) for rank in (0, 1)),
            again: tuple(
                Record(again, 1, "float32", (2,), rank=rank, same_as=first) for rank in taking
            ),
        },
        num_ranks=2,
    )
    made, taken = Pair(first, first), Pair(again, again)
    said = {made: Judgement(Verdict.PASS, ""), taken: Judgement(Verdict.INCONCLUSIVE, "")}
    found = cover(said, followers([made, taken], golden, target, lambda pair: pair is taken))
    assert found.get(taken, said[taken]).verdict is Verdict(expected)
