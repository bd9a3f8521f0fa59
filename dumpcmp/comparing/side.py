"""One of the archives that are compared: what of it is selected, and how its values are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.assemble import Held, RunFacts
from dumpcmp.align.mesh.declared import Declarations
from dumpcmp.align.microbatches import merged
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.selection import Tap


@dataclass(frozen=True, slots=True)
class Shares:
    """A value as an archive holds it, for a worker to read: one Record for every rank's share."""

    path: Path
    records: tuple[Record, ...]
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def first(self) -> Record:
        """The Record of the lowest rank."""
        return self.records[0]

    @property
    def nbytes(self) -> int:
        """Bytes that lie in the archive."""
        return sum(record.location.nbytes for record in self.records if record.location)

    @property
    def is_partitioned(self) -> bool:
        """Whether the value lies on several ranks, or says how it lies over a mesh."""
        return len(self.records) > 1 or bool(self.first.layout)

    @property
    def is_summarised(self) -> bool:
        """Whether Summaries are all that is left of the value."""
        return any(record.kept is Kept.SUMMARY for record in self.records)

    @property
    def problem(self) -> str:
        """Why the value cannot be read; empty where it can."""
        problems = [record.problem for record in self.records if record.kept is Kept.NOTHING]
        return problems[0] or "no reason is known" if problems else ""

    def held(self) -> Held:
        """The shares with all that is known of their layouts, and how to read them."""
        return Held(self.records, archive_at(self.path).load, self.facts)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """An archive and what the comparison looks at in it."""

    archive: Archive
    listing: Listing
    facts: RunFacts = field(default_factory=RunFacts)

    def shares(self, key: Key) -> Shares:
        """What the ranks hold of a value."""
        return Shares(self.archive.path, self.listing.values[key], self.facts)

    def states(self, key: Key) -> bool:
        """Whether the user says how a value lies over the ranks."""
        return self.facts.declared.layout_of(key) is not None

    def check_digests(self, *, every: bool) -> None:
        """Read what the models gave in the end, or everything: ArchiveError where it is damaged.

        What has the same digest on both sides is not read to be measured, and what the models
        gave decides whether they are the same.
        """
        archive = archive_at(self.archive.path)
        for key, records in self.listing.values.items():
            if every or (key.op == ROOT and key.slot.is_output):
                for record in records:
                    if record.kept is not Kept.NOTHING and record.location is not None:
                        archive.load(record)


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
    return Side(archive, merged(Listing(values, calls, archive.world_size)), facts)


@lru_cache(maxsize=8)
def archive_at(path: Path) -> Archive:
    """The archive at `path`, opened once in this process; what is read is checked."""
    archive = Archive(path)
    archive.checks_digests = True
    return archive
