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
    of_call: dict[tuple[str, int], list[Record]] = {}
    heir: Key | None = None
    for record in records:
        of_call.setdefault((record.key.op, record.key.call), []).append(record)
    for call in sorted(calls, key=lambda each: each.order):
        sink.call(call)
        for record in of_call.get((call.op, call.call), ()):
            if record.key == lost:
                continue
            if record.same_as == lost and heir is None:
                heir = record.key
                record = replace(record, same_as=None)
            elif record.same_as == lost:
                record = replace(record, same_as=heir)
            is_held = record.same_as is None and record.kept is Kept.FULL and not record.problem
            source = Dense(archive.load(record).bits) if is_held else None
            sink.put(replace(record, location=None), source)
