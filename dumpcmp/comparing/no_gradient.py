"""Finds gradients that are zero on one side and that the other side did not compute at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dumpcmp.comparing.side import Side
from dumpcmp.comparing.summaries import load_summary
from dumpcmp.judge import Evidence
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key


def with_zeros(evidence: Sequence[Evidence], golden: Side, target: Side) -> list[Evidence]:
    """`evidence`, which knows of gradients that one side alone has whether they are zero.

    Where nothing depends on an output of a compiled graph, its backward pass is given zeros, and
    computes zeros of them; eager autograd does not run there.
    """
    return [_looked_at(one, golden, target) for one in evidence]


def _looked_at(evidence: Evidence, golden: Side, target: Side) -> Evidence:
    pair = evidence.pair
    if pair.both or not pair.key.slot.is_gradient:
        return evidence
    return replace(evidence, is_zero=_is_zero(golden if pair.golden else target, pair.key))


def _is_zero(side: Side, key: Key) -> bool:
    """Whether every element of a value is zero, on all ranks that have it."""
    try:
        summaries = [load_summary(side.archive, one) for one in side.listing.values[key]]
    except DumpcmpError:  # what cannot be read tells nothing: the row stays as it is
        return False
    return all(summary.num_zero == summary.count > 0 for summary in summaries)
