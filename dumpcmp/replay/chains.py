"""Runs several of golden's calls one after the other: a region between values of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.nouns.record import Call
from dumpcmp.replay.limits import MOST_BYTES
from dumpcmp.replay.running import Rerun
from dumpcmp.replay.unreplayable import Unreplayable

Place = tuple[int, str]  # the how-manieth call of a region, and a slot of it


@dataclass(frozen=True, slots=True)
class Region:
    """Calls in the order in which they run, and which of their inputs are outputs of others."""

    calls: Sequence[Call]
    wires: Mapping[Place, Place] = field(default_factory=dict)  # an input -> the output that it is
    dtypes: Mapping[Place, torch.dtype] = field(default_factory=dict)  # of outputs, as golden ran


def rerun_region(
    region: Region,
    given: Mapping[Place, Tensor],
    wanted: Mapping[str, Place],
    *,
    device: str = "cpu",
    limit: int = MOST_BYTES,
) -> Rerun:
    """Run the calls of `region` from the values at its edge: `given`, by call and input slot.

    `wanted` names the outputs that are asked for. Nothing is rounded between the calls; `noise` is
    the error of the same calls with every value rounded to the dtype that golden had it in.
    """
    raise Unreplayable("regions are not run yet")
