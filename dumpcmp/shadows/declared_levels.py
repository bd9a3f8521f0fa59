"""Whether a value is another one, rounded to levels that are declared."""

from __future__ import annotations

from collections.abc import Iterable

from dumpcmp.judge.replaying import is_unbiased
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.measure.nearest_levels import quantised_from
from dumpcmp.nouns.levels import Quantised
from dumpcmp.nouns.value import Kind, Value, dtype_named


def quantised(golden: Value, target: Value, words: Iterable[str]) -> Quantised | None:
    """How `target` is golden's, rounded to levels that go by one of `words`; None where it is not.

    Words that no levels go by have nothing to say.
    """
    for word in sorted(QUANTISED.keys() & set(words)):
        found = quantised_from(golden, target, QUANTISED[word])
        if found is not None and is_unbiased(found):
            return found
    return None


def are_codes(golden: str, target: str) -> bool:
    """Whether numbers of one dtype stand for numbers of the other: integers, or short floats."""
    ours, theirs = dtype_named(golden), dtype_named(target)
    is_short = theirs.kind is Kind.FLOAT and theirs.nbytes == 1 < ours.nbytes
    return ours.kind is Kind.FLOAT and (theirs.kind is Kind.INT or is_short)
