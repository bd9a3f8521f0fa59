"""Writes parts straight to their place, several by several processes: for runs that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dumpcmp.archive.manifest import Manifest, PartCount
from dumpcmp.archive.paths import (
    RankDirectory,
    dataset_path,
    now,
    part_name,
    remove,
)
from dumpcmp.archive.schema import MAX_LINKS, SCHEMA_VERSION, form_key, form_of
from dumpcmp.archive.write.begun import opening_facts
from dumpcmp.archive.write.objects import Template, trouble_with
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Record, Source

MOST_CALLS = MAX_LINKS // 2  # of one part
_LARGE = 1 << 20  # bytes of a value from which on it is copied straight into the file


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Which part of an archive it is: of a rank, a model and a step, and its number there."""

    root: Path
    rank: int
    world_size: int
    model: str
    step: int
    number: int = 0

    @property
    def directory(self) -> RankDirectory:
        """The directory of its rank."""
        return RankDirectory(self.root, self.rank, self.world_size)

    @property
    def facts(self) -> dict[str, Any]:
        """What the part says of itself."""
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model,
            "step": self.step,
            "rank": self.rank,
            "world_size": self.world_size,
            "part": self.number,
        }


@dataclass(frozen=True, slots=True)
class PartTold:
    """How much was written. They add."""

    num_records: int = 0
    nbytes: int = 0
    parts: tuple[PartCount, ...] = ()

    def __add__(self, other: PartTold) -> PartTold:
        nbytes = self.nbytes + other.nbytes
        return PartTold(self.num_records + other.num_records, nbytes, self.parts + other.parts)


class StraightPart:
    """One part that a single thread writes: what it receives is of its step; links stay in it."""

    def __init__(self, draft: Path, place: PartPlace) -> None:
        self._part = Part(draft, place.facts)
        self._calls: dict[tuple[str, int], int] = {}
        self._rows: dict[Key, int] = {}
        self._forms: dict[Any, tuple[Template, int]] = {}
        self._nbytes = 0

    @property
    def told(self) -> PartTold:
        """How much it has received."""
        return PartTold(self._part.num_rows, self._nbytes, (self._part.count(),))

    def call(self, call: Call) -> None:
        """Receive a call, before the Records of its values. The first of its name stays."""
        if (call.op, call.call) not in self._calls:
            self._calls[call.op, call.call] = len(self._calls)
            self._part.append_call(call)

    def put(self, record: Record, source: Source | None) -> None:
        """Receive a value; `source` is None for a link (`same_as`) or a `problem`."""
        record = _storable(record)
        owner = (self._calls[record.key.op, record.key.call], *self._form(record), record.order)
        self._rows[record.key] = self._part.num_rows
        if record.same_as is not None:
            self._link(owner, record.same_as)
        else:
            self._value(owner, source if record.kept.holds else None)
            self._nbytes += owner[1].nbytes

    def _link(self, owner: Owner, earlier: Key) -> None:
        row = self._rows[earlier]
        path = dataset_path(earlier.op, earlier.call, earlier.slot)
        self._part.append_link(owner, self._part.number, row, self._part.row(row), path)

    def _value(self, owner: Owner, source: Source | None) -> None:
        if source is not None and source.nbytes >= _LARGE:
            self._part.append_large(owner, source)
            return
        content = bytearray(source.nbytes if source else 0)
        if source is not None:
            wait = source.copy_into(memoryview(content))
            if wait is not None:
                wait()
        self._part.append_value(owner, memoryview(content))

    def _form(self, record: Record) -> tuple[Template, int]:
        key = form_key(record)
        if key not in self._forms:
            template = Template(form_of(record))
            self._forms[key] = template, self._part.append_form(template)
        return self._forms[key]

    def seal(self, *, sync: bool) -> None:
        """Write the index; nothing more can come."""
        self._part.seal(sync=sync)

    def close(self) -> None:
        """Let go of a part that was not sealed."""
        self._part.close()


def _storable(record: Record) -> Record:
    """`record`, or what is said in its place where the format cannot hold it."""
    if record.problem:
        return replace(record, kept=Kept.NOTHING)
    trouble = trouble_with(form_of(record))
    return replace(record, kept=Kept.NOTHING, problem=trouble) if trouble else record


@contextmanager
def straight(place: PartPlace, *, sync: bool = False) -> Iterator[StraightPart]:
    """Write a part; it is there when the block has succeeded, whole, and otherwise not at all.

    Who does the same work a second time replaces what the first one has written.
    """
    directory = place.directory.step_directory(place.model, place.step)
    with replacing(directory / part_name(place.number)) as draft:
        sink = StraightPart(draft, place)
        try:
            yield sink
            sink.seal(sync=sync)
        finally:
            sink.close()


@dataclass(frozen=True, slots=True)
class StraightRun:
    """The ranks of a run whose parts several processes write: begun, and at last said to be whole.

    Until then run.json says that they are not; the process that began them counts as the writer.
    """

    root: Path
    world_size: int
    facts: Mapping[int, dict[str, Any]]  # run.json of each rank

    @classmethod
    def begin(
        cls, root: Path, world_size: int, ranks: Mapping[int, Mapping[str, Any]], *, overwrite: bool
    ) -> StraightRun:
        """Make the directories of `ranks`, each with what its run.json says of the run."""
        facts = {}
        for rank, run in ranks.items():
            directory = RankDirectory(root, rank, world_size)
            directory.create(overwrite=overwrite)
            facts[rank] = opening_facts(directory, dict(run))
            directory.write_run(facts[rank])
        return cls(root, world_size, facts)

    def end(self, told: Mapping[int, PartTold]) -> None:
        """Say that all is there: so much of each rank."""
        for rank, facts in self.facts.items():
            directory = RankDirectory(self.root, rank, self.world_size)
            for draft in directory.path.glob("*/*/.draft-*"):  # of workers that were lost
                remove(draft)
            count = told.get(rank, PartTold())
            manifest = Manifest(count.parts)
            manifest.write(directory.path)
            ending = {
                "ended": now(),
                "complete": True,
                "num_records": count.num_records,
                "nbytes": count.nbytes,
                "manifest": manifest.seal,
                "writer": None,
            }
            directory.write_run(facts | ending)
