"""What a step leaves behind for the next one, in buffers and elsewhere, or in the end."""

from __future__ import annotations

from collections.abc import Iterator

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Kept, Record

_BUFFER = "buffer"


def left_behind(archive: Archive, model: str, step: int, rank: int) -> Iterator[tuple[str, Record]]:
    """What a step of `rank` may have left: buffers by name, such as ``buffer.layers.0.mean``.

    What else the next step took and did not make, such as a cache, has no name.
    """
    is_last = step + 1 not in archive.steps(model)
    for held in archive.rank_steps(model, step if is_last else step + 1):
        if held.rank != rank:
            continue
        for record in held.records(effects=is_last):
            key, is_kept = record.key, record.kept is Kept.FULL and not record.problem
            if not is_kept or record.same_as is not None:
                continue
            if is_last and key.slot.kind == _BUFFER and key.op == Effect.STATE.op:
                yield str(key.slot), record
            elif not is_last and key.slot.kind == _BUFFER and key.op.is_module:
                module = "" if key.op == ROOT else f"{key.op}."
                yield f"{_BUFFER}.{module}{key.slot.name}", record
            elif not is_last and key.slot.is_input and not key.op.is_module:
                yield "", record
