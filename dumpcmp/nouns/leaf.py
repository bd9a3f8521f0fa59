"""A value that no op of its run computed, and that is not the same in the other run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from dumpcmp.nouns.key import Key


class LeafKind(StrEnum):
    """Where a leaf comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"  # of a model
    CONSTANT = "constant"  # made by a function that takes no tensor, or kept outside of modules


@dataclass(frozen=True, slots=True)
class LeafFinding:
    """A leaf that is another tensor than golden's."""

    key: Key  # golden's name of it
    kind: LeafKind
    said: str  # "layers.3.mlp.w2 weight is not the same tensor: rel_l2 0.002; golden's x 1.002"
    rel_l2: float = math.nan  # NaN where the shapes differ
