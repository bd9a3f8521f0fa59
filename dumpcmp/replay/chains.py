"""Several calls that run one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dumpcmp.nouns.record import Call

At = tuple[int, str]  # the how-manieth call of a region, and a slot of it


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls in the order in which they run, and which of their inputs are outputs of others."""

    calls: Sequence[Call]
    wires: Mapping[At, At] = field(default_factory=dict)  # an input -> the output that it is
    dtypes: Mapping[At, torch.dtype] = field(default_factory=dict)  # of outputs, as golden ran
