"""What replays of ranks' values may be off by: terms are rounded each, and zeros fit any layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dumpcmp.comparing.placing import loaded
from dumpcmp.comparing.reruns import Loading
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import to_torch

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor


def as_terms_round(replay: Replay, readings: Iterable[Loading]) -> Replay:
    """`replay` of an op that took or gave `readings`, rated by the sizes of those in terms.

    Of rows and elements nobody knows how large their terms are.
    """
    terms = [one for one in readings if one.in_terms]
    if not terms or not replay.is_known or replay.is_exact:
        return replay
    grown = replay.condition * max(map(_cancellation, terms))
    return replay._replace(condition=grown, worst_row=math.nan, worst_element=math.nan)


def as_zeros_fit(replay: Replay, again: Tensor, got: Tensor, reading: Loading) -> Replay:
    """`replay` of what only moves; where `got` was put together, zeros have the sign of any rank's.

    Of a value that is zero every layout fits, and nobody knows which zero is whose.
    """
    if not replay.mismatched or not reading.task.is_partitioned or again.shape != got.shape:
        return replay
    is_same = bool((again.to(got.dtype) == got).all())
    return replay._replace(mismatched=0) if is_same else replay


def _cancellation(reading: Loading) -> float:
    """How much larger the terms of a value are than their sum."""
    shares = reading.task.target.held()
    terms = sum(float(to_torch(shares.load(r)).double().norm()) for r in shares.records)
    whole = float(loaded(reading, is_target=True).double().norm())
    return max(1.0, terms / whole) if whole else 1.0
