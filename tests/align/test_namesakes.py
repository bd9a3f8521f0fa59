"""Runs that did the same: the short way finds what the search would, and knows where it may not."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.align.counting import AS_COUNTED, Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.namesakes import by_key
from dumpcmp.align.pairing import _pair_model
from dumpcmp.align.renaming import Renaming
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Pair
from tests.align.test_random_programs import listed, program

SEEDS = st.integers(0, 10_000)


def told(pairs: list[Pair]) -> list[tuple[Key | None, Key | None, str]]:
    return [(pair.golden, pair.target, pair.by) for pair in pairs]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["one", "other"]))
def test_the_search_finds_the_same_pairs(seed: int, digests: str) -> None:
    golden, target = (listed(program(seed, 40), name)[0] for name in ("one", digests))
    found = by_key(golden, target, AS_COUNTED)
    assert found
    assert told(found) == told(_pair_model(golden, target, Renaming(), AS_COUNTED))


def test_any_other_form_name_link_or_count_is_for_the_search() -> None:
    golden, _ = listed(program(1, 12), "one")
    last = list(golden.values)[-1]
    record = golden.record(last)
    for other in (
        replace(record, shape=(7, 7)),
        replace(record, dtype="float16"),
        replace(record, same_as=next(iter(golden.values))),
        replace(record, layout="b s[tp]"),
    ):
        changed = Listing({**golden.values, last: (other,)}, golden.calls)
        assert not by_key(golden, changed, AS_COUNTED)
    assert not by_key(golden, golden, Counting(tokens=1))


def test_bytes_under_another_name_are_for_the_search() -> None:
    golden, _ = listed(program(1, 12), "one")
    outputs = [key for key in golden.values if key.slot.is_output]
    one, other = (golden.record(key) for key in outputs[:2])
    swapped = {
        outputs[0]: (replace(one, digest=other.digest),),
        outputs[1]: (replace(other, digest=one.digest),),
    }
    same = {key: (replace(golden.record(key), digest="0"),) for key in outputs[:2]}
    for changed in (swapped, same):
        target = Listing({**golden.values, **changed}, golden.calls)
        assert not by_key(golden, target, AS_COUNTED)
