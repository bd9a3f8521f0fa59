"""One of the archives that are compared: what of it is selected, and how its values are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dumpcmp.align.match import Listing
from dumpcmp.align.mesh.assemble import RunFacts
from dumpcmp.align.mesh.declared import Declarations
from dumpcmp.align.microbatches import merged
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.selection import Tap


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """An archive and what the comparison looks at in it."""

    archive: Archive
    listing: Listing
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def is_partitioned(self) -> bool:
        """Whether the run had several ranks."""
        return self.archive.world_size > 1

    @property
    def path(self) -> Path:
        """Where the archive is."""
        return self.archive.path

    def call_of(self, key: Key) -> Call | None:
        """The call that gave or took `key`."""
        return self.listing.calls.get(key.site)

    def record_of(self, key: Key) -> Record:
        """The Record of `key` on the lowest rank that has it."""
        return self.listing.values[key][0]

    def links(self) -> dict[Key, Key]:
        """Each value that is an earlier one of its run on every rank, and that one."""
        return {
            key: records[0].same_as
            for key, records in self.listing.values.items()
            if records[0].same_as is not None
            and all(record.same_as == records[0].same_as for record in records[1:])
        }


def open_side(
    path: str | Path, tap: Tap, token_offset: int = 0, declared: Declarations | None = None
) -> Side:
    """Open the archive at `path` and list what `tap` selects; steps are counted from the offset.

    `declared` is what the user states about the layouts of a partitioned run.
    """
    archive = Archive(path)
    values = {
        key: archive.shards(key)
        for model in archive.models
        for step in archive.steps(model)
        if tap.selects_step(step + token_offset)
        for key in archive.keys_of(model, step)
        if tap.selects_op(key.op)
    }
    calls = {
        site: call
        for site, call in archive.calls.items()
        if tap.selects_step(call.step + token_offset) and tap.selects_op(call.op)
    }
    facts = RunFacts(archive.world_size, archive.missing_ranks, declared or Declarations())
    return Side(archive, merged(Listing(values, calls)), facts)


@lru_cache(maxsize=8)
def archive_at(path: Path) -> Archive:
    """The archive at `path`, opened once in this process."""
    return Archive(path)
