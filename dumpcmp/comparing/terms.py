"""Finds partial terms that nobody has added up: a reduction that is missing is no layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.laying import is_partial, like
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import ROOT, Key, Site
from dumpcmp.nouns.op_names import WorkSet
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import LaidOut, Measured, Pair, Trouble

# Functions of a sum that are the sum of what they are of its terms: they may take terms as such.
_LINEAR = WorkSet(
    """
    all_reduce bmm cat chunk clone contiguous detach div einsum expand flatten getitem index_add
    index_select linear masked_fill matmul mean mm movedim mul narrow neg pad permute repeat reshape
    scatter_add select setitem split squeeze stack sum to transpose unbind unflatten unsqueeze view
    where zeros_like empty_like new_empty new_zeros
    """
)
_ADDING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)
_SUMS = WorkSet("add sub")  # linear only if all that they add up are terms


def terms_left(found: Mapping[Pair, Measured], target: Listing) -> dict[Pair, str]:
    """What is wrong with values that are terms of a sum and should be the sum itself."""
    return _taken_as_sums(found) | _summed_elsewhere(found, target)


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


def _summed_elsewhere(found: Mapping[Pair, Measured], target: Listing) -> dict[Pair, str]:
    """Module outputs that lie in partial terms, and a like module that has them reduced.

    Where somebody has stated how such a value lies, it is judged by that.
    """
    outputs = {
        pair: (pair.target, one.laid)
        for pair, one in found.items()
        if one.laid and pair.target and pair.target.slot.is_output and pair.target.op.is_module
    }
    summed = {like(key): key.op for key, laid in outputs.values() if not is_partial(laid)}
    stated = {target.first(key) for key, laid in outputs.values() if not laid.is_solved}
    inner: dict[Key, Pair] = {}  # of one value that several modules give out: the innermost
    for pair, (key, laid) in outputs.items():
        if laid.is_solved and is_partial(laid) and like(key) in summed:
            value = target.first(key)
            other = inner.setdefault(value, pair)
            inner[value] = max(other, pair, key=lambda one: one.key.op.count("."))
    return {
        pair: f"in {summed[like(outputs[pair][0])]} they hold the sum"
        for value, pair in inner.items()
        if value not in stated
    }


def _taken_as_sums(found: Mapping[Pair, Measured]) -> dict[Pair, str]:
    """Inputs in partial terms of ops that need the sum, and whose results then are nothing."""
    calls: dict[Site, list[Pair]] = defaultdict(list)
    for pair in found:
        if pair.golden and pair.target and not pair.golden.slot.is_gradient:
            calls[pair.golden.site].append(pair)
    wrong: dict[Pair, str] = {}
    for site, pairs in calls.items():
        function = site.op.function
        given = [pair for pair in pairs if pair.key.slot.is_input]
        terms = [pair for pair in given if _are_terms(found[pair])]
        if not terms or site.op.is_module or function in _LINEAR:
            continue
        is_sum = function in _SUMS and len(terms) == len(given)
        if not is_sum and _agree([found[pair] for pair in given]) and _fails(pairs, found):
            wrong[terms[0]] = f"and {site.op} takes them as if they were the sum"
    return wrong


def _are_terms(measured: Measured) -> bool:
    return measured.laid is not None and measured.laid.is_solved and is_partial(measured.laid)


def _agree(given: Sequence[Measured]) -> bool:
    return all(one.trouble is None and not (one.laid and one.laid.remark) for one in given)


def _fails(pairs: Sequence[Pair], found: Mapping[Pair, Measured]) -> bool:
    """Whether no layout makes sense of what the call gave out."""
    gave = [found[pair] for pair in pairs if pair.key.slot.is_output]
    return any(one.trouble is Trouble.UNSOLVED or (one.laid and one.laid.remark) for one in gave)
