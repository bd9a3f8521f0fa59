"""Finds partial terms that nobody has added up: a reduction that is missing is no layout."""

from __future__ import annotations

from collections.abc import Mapping

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.laying import is_partial
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import LaidOut, Measured, Pair

_ADDING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)


def terms_given(found: Mapping[Pair, Measured], target: Listing) -> dict[Pair, str]:
    """What a model gives out in terms, though nobody states that, and nobody adds them up.

    It may be meant so, or the last reduction is missing. One number, such as the loss of a rank's
    own samples, is no such result: programs print it, or reduce it after the step.
    """
    given = {
        pair: (pair.target, one.laid)
        for pair, one in found.items()
        if one.laid and _are_terms(one) and one.metrics and one.metrics.count > 1
        if pair.target and pair.target.op == ROOT and pair.target.slot.is_output
    }
    return {
        pair: _said(key, laid)
        for pair, (key, laid) in given.items()
        if target.num_ranks > 1 and not _is_added_up(key, target)
    }


def _said(key: Key, laid: LaidOut) -> str:
    """What is open of a result in terms, and how to say that they are meant."""
    return (
        "each rank gives out a term of it, and nothing that is recorded adds them up; "
        f"where that is meant, say so: --layout '{key.op} {key.slot}={laid.layout}'"
    )


def _is_added_up(given: Key, target: Listing) -> bool:
    """Whether collectives of the step take what each rank gave out, and add up."""
    taken = [
        record
        for key, records in target.values.items()
        if (key.model, key.step) == (given.model, given.step)
        if key.op.function in _ADDING and key.slot.is_input
        for record in records
    ]
    return all(any(_is_same(one, own) for one in taken) for own in target.values[given])


def _is_same(taken: Record, own: Record) -> bool:
    """Whether a collective took what its rank had, as far as it was recorded what it took."""
    is_alike = (taken.rank, taken.shape) == (own.rank, own.shape)
    return is_alike and (taken.digest == own.digest or taken.kept is Kept.NOTHING)


def _are_terms(measured: Measured) -> bool:
    return measured.laid is not None and measured.laid.is_solved and is_partial(measured.laid)
