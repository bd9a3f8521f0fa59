"""What values in terms may be off by: each rank has rounded its own, however little is left."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dumpcmp.comparing.placing import loaded
from dumpcmp.comparing.reruns import Loading
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import to_torch


def as_terms_round(replay: Replay, readings: Iterable[Loading]) -> Replay:
    """`replay` of an op that took or gave `readings`, rated by the sizes of those in terms.

    Of rows and elements nobody knows how large their terms are.
    """
    terms = [one for one in readings if one.in_terms]
    if not terms or not replay.is_known or replay.is_exact:
        return replay
    grown = replay.condition * max(map(_cancellation, terms))
    return replace(replay, condition=grown, worst_row=math.nan, worst_element=math.nan)


def _cancellation(reading: Loading) -> float:
    """How much larger the terms of a value are than their sum."""
    shares = reading.task.target.held()
    terms = sum(float(to_torch(shares.load(r)).double().norm()) for r in shares.records)
    whole = float(loaded(reading, is_target=True).double().norm())
    return max(1.0, terms / whole) if whole else 1.0
