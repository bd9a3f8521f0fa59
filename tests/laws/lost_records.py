"""Archives that lack a record: what a capture would have written if it had not seen a value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Record
from tests.archive.values import Dense


def without_record(source: Path, path: Path, lost: Key) -> Path:
    """The archive at `source`, of one rank, without one record; what links to it has the value."""
    archive = Archive(source)
    run = next(iter(archive.run.values()))["run"]
    with ArchiveWriter(path, run=run) as sink:
        for model in archive.models:
            for step in archive.steps(model):
                for held in archive.rank_steps(model, step):
                    calls = [*held.calls(), *held.calls(effects=True)]
                    records = [*held.records(), *held.records(effects=True)]
                    _copy_step(archive, sink, calls, records, lost)
                sink.finish_step(model, step)
    return path


def _copy_step(
    archive: Archive, sink: ArchiveWriter, calls: list[Call], records: list[Record], lost: Key
) -> None:
    for call in sorted(calls, key=lambda each: each.order):
        sink.call(call)
    kept = [record for record in records if record.key != lost]
    heir = next((record.key for record in kept if record.same_as == lost), None)
    kept = [
        replace(record, same_as=None if record.key == heir else heir)
        if record.same_as == lost
        else record
        for record in kept
    ]
    for record in sorted(kept, key=lambda each: each.same_as is not None):  # links come last
        is_held = record.same_as is None and record.kept is Kept.FULL and not record.problem
        source = Dense(archive.load(record).bits) if is_held else None
        sink.put(replace(record, location=None), source)
