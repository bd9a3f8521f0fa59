"""Calls of which some rows are kept: whether they can be run again on those, and the rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dumpcmp.comparing.side import archive_at
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.sampled import Sample, row_length
from dumpcmp.nouns.value import to_torch

if TYPE_CHECKING:
    from torch import Tensor


def sample_of(record: Record) -> Sample | None:
    """Which rows are kept of a value; None where it is whole, or nothing of it is kept."""
    return None if record.kept is Kept.FULL else record.sample


def common_rows(
    call: Call, takes: Mapping[str, Record], gives: Mapping[str, Record]
) -> Sample | None:
    """The rows that are kept of what a call took and gave; None where no value is sampled.

    DumpcmpError where the call cannot be run again on them.
    """
    records = {**takes, **gives}
    samples = {slot: sample for slot, one in records.items() if (sample := sample_of(one))}
    if not samples:
        return None
    if len(set(samples.values())) > 1:
        raise DumpcmpError(
            "only some rows are kept, and not the same of all that it takes and gives"
        )
    if not gives.keys() <= samples.keys():
        raise DumpcmpError("only some rows are kept of what it was given")
    from dumpcmp.replay.rowwise import unfit_for_rows  # where there is something to run

    shapes = {slot: one.shape for slot, one in records.items() if slot in samples}
    whole = {slot: one.shape for slot, one in records.items() if slot not in samples}
    if why := unfit_for_rows(call, shapes, whole):
        raise DumpcmpError(why)
    return next(iter(samples.values()))


def load_rows(path: Path, record: Record, sample: Sample) -> Tensor:
    """The rows `sample` of a value, one after the other; DumpcmpError where it has not all."""
    tensor, row = to_torch(archive_at(path).load(record)), row_length(record.shape)
    if record.kept is Kept.FULL:
        import torch

        tensor = tensor.reshape(sample.num_rows, row)[torch.from_numpy(sample.rows)]
    elif record.sample != sample:
        raise DumpcmpError(f"only {record.sample or 'a summary'} of it are kept")
    return tensor.reshape(sample.num_kept, *([row] if len(record.shape) > 1 else []))
