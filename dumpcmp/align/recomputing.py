"""Places what a rank computes once more beside golden's value: it has the same bytes again."""

from __future__ import annotations

from collections.abc import Sequence

from dumpcmp.align.flow import content_of
from dumpcmp.align.partners import Partners
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Pair, PairedBy


def computed_again(sides: Partners, pairs: Sequence[Pair]) -> list[Pair]:
    """`pairs`; what a function gave in the target alone, and gave another time, is beside golden's.

    So on each rank that has it, to the bit: such a call is one too many and no fault, and what
    comes after it may be one.
    """
    known: dict[object, Pair] = {}
    for pair in pairs:
        if pair.both and pair.target and _is_made(pair.target):
            for record in sides.target.values[pair.target]:
                known.setdefault(_given(record), pair)
    known.pop(None, None)
    return [_placed(sides, pair, known) for pair in pairs]


def _placed(sides: Partners, pair: Pair, known: dict[object, Pair]) -> Pair:
    if pair.golden or not pair.target or not _is_made(pair.target):
        return pair
    found = {known.get(_given(record)) for record in sides.target.values[pair.target]}
    first = found.pop() if len(found) == 1 else None
    return Pair(first.golden, pair.target, PairedBy.VALUE) if first else pair


def _is_made(key: Key) -> bool:
    return key.slot.is_output and not key.op.is_module


def _given(record: Record) -> object:
    """What a function gave on a rank, to the bit; None where that is not known."""
    content, key = content_of(record), record.key
    return content and (record.rank, key.model, key.step, key.op.function, key.slot, content)
