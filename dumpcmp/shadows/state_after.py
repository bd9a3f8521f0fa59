"""What a step leaves in buffers: what the next one finds there, or the end of the run."""

from __future__ import annotations

from collections.abc import Iterator

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Kept, Record

_BUFFER = "buffer"


def buffers_after(archive: Archive, model: str, step: int, rank: int) -> Iterator[tuple[str, Record]]:
    """The buffers as a step of `rank` left them, by name: ``buffer.layers.0.mean``."""
    is_last = step + 1 not in archive.steps(model)
    for held in archive.rank_steps(model, step if is_last else step + 1):
        if held.rank != rank:
            continue
        for record in held.records(effects=is_last):
            key = record.key
            if key.slot.kind != _BUFFER or record.kept is not Kept.FULL or record.problem:
                continue
            if not is_last and key.op.is_module and key.call == 0:
                module = "" if key.op == ROOT else f"{key.op}."
                yield f"{_BUFFER}.{module}{key.slot.name}", record
            elif is_last and key.op == Effect.STATE.op:
                yield str(key.slot), record
