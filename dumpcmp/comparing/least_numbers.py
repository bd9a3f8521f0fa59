"""Masks are made of the least number of a dtype: each run has that of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Pair

# The largest number of each dtype, which has the least one's size.
_LARGEST = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float16": 65504.0,
}
_WORDS = tuple(repr(number) for number in _LARGEST.values())


def with_own_limits(flow: DataFlow) -> dict[Site, Call]:
    """Golden's calls with the least numbers of the target's dtypes in place of golden's own.

    A call has those where its dtype on either side is another, and it is given the least number, or
    the largest, of each: so the target is held against what it must give in its dtype.
    """
    return dict(_found(flow))


def _found(flow: DataFlow) -> Iterator[tuple[Site, Call]]:
    for site, pairs in flow.calls.items():
        call = flow.golden.calls.get(site)
        if call is None or not any(word in call.arguments for word in _WORDS):
            continue
        other = _partner(flow, pairs)
        limits = _limits(flow, pairs)
        if other is None or limits is None or other.arguments == call.arguments:
            continue
        told = _exchanged(argument_tree(call), argument_tree(other), *limits)
        yield site, replace(call, arguments=json.dumps(told, separators=(",", ":")))


def _partner(flow: DataFlow, pairs: Sequence[Pair]) -> Call | None:
    """The target's call of the same function."""
    theirs = next((pair.target for pair in pairs if pair.both and pair.target), None)
    call = None if theirs is None else flow.target.call(theirs)
    same = call is not None and theirs is not None and call.op.function == pairs[0].key.op.function
    return call if same else None


def _limits(flow: DataFlow, pairs: Sequence[Pair]) -> tuple[float, float] | None:
    """The largest numbers of what the call gives out, golden's and the target's, if they differ."""
    for pair in pairs:
        if pair.golden and pair.target and pair.key.slot.is_output:
            ours, theirs = (
                _LARGEST.get(listing.record(key).dtype)
                for listing, key in ((flow.golden, pair.golden), (flow.target, pair.target))
            )
            return (ours, theirs) if ours and theirs and ours != theirs else None
    return None


def _exchanged(golden: Any, target: Any, ours: float, theirs: float) -> Any:
    """Golden's arguments, with the target's limits where each side has its own."""
    if isinstance(golden, dict) and isinstance(target, dict) and golden.keys() == target.keys():
        return {word: _exchanged(golden[word], target[word], ours, theirs) for word in golden}
    if isinstance(golden, list) and isinstance(target, list) and len(golden) == len(target):
        return [_exchanged(g, t, ours, theirs) for g, t in zip(golden, target, strict=True)]
    is_own = (golden, target) in ((ours, theirs), (-ours, -theirs))
    return target if is_own else golden
