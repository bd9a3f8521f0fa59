"""Audits an archive against itself: schema, digests, torn records, missing ranks, leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from dumpcmp.archive import encoder, paths
from dumpcmp.archive.locks import alone
from dumpcmp.archive.paths import RankDirectory, gaps, listed
from dumpcmp.archive.read.contents import Contents, PartFile, dataset
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import read_part, ring_records
from dumpcmp.archive.schema import (
    ABSENT,
    JOURNAL_AT,
    KNOWN_VERSIONS,
    NO_ROW,
    RUN_FILE,
    SCHEMA_VERSION,
)
from dumpcmp.archive.write.recovery import recover
from dumpcmp.nouns.errors import ArchiveError

_PIECE = 16 << 20  # bytes digested at once


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is not as it should be, and what `repair` did about it."""

    place: Path
    problem: str
    repair: str = ""  # what was done; empty: nothing
    harmless: bool = False  # worth knowing, but nothing is wrong with the archive

    @property
    def stands(self) -> bool:
        """Whether it is still wrong."""
        return not self.repair and not self.harmless


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found. `exit_code` is 0 where the archive is sound, or sound again."""

    path: Path
    findings: tuple[Flaw, ...]
    num_parts: int
    num_records: int
    nbytes: int  # of tensors whose digests were checked

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return not any(finding.stands for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 sound, 1 not."""
        return int(not self.sound)


def audit(path: str | Path, *, repair: bool = False) -> Audit:
    """Check the archive at `path` against itself; with `repair`, recover what a crash left.

    Repair seals parts that have no index, with all that their journal and the dead writer's
    ring hold for them, and clears leftovers away. It touches nothing that is still being
    written, and invents nothing: a value whose digest is wrong stays a finding.
    """
    paths.clear_rings()
    archive = Archive(path)
    if not repair:
        return _audit(archive, repair)
    with alone(archive.path):
        return _audit(archive, repair)


def _audit(archive: Archive, repair: bool) -> Audit:
    flaws: list[Flaw] = []
    if missing := listed(archive.missing_ranks):
        flaws.append(Flaw(archive.path, f"rank {missing} of {archive.world_size} is missing"))
    ranks = [
        _RankAudit(directory, RankDirectory(archive.path, rank, world_size), repair)
        for directory, (world_size, rank) in paths.rank_directories(archive.path).items()
    ]
    for each in ranks:
        each.check()
        flaws += each.flaws
    flaws += [
        Flaw(archive.path, f"rank {rank} has no step {step} of {model}, others do")
        for model in archive.models
        for step in archive.steps(model)
        for rank in set(archive.ranks) - set(archive.ranks_with(model, step))
    ]
    counts = ((each.num_parts, each.num_records, each.nbytes) for each in ranks)
    return Audit(archive.path, tuple(flaws), *map(sum, zip(*counts, strict=True)))


class _RankAudit:
    """Checks one rank: its run.json, its parts, and what should not be there."""

    def __init__(self, directory: Path, rank: RankDirectory, repair: bool) -> None:
        self.directory, self.rank = directory, rank
        self.facts = paths.read_run(directory)
        self.live = paths.writer_lives(self.facts, directory)
        self.mends = repair and not self.live
        self.ring = paths.ring_left_by(directory)
        self.stranded = list(ring_records(self.ring)) if self.ring else []
        self.flaws: list[Flaw] = []
        self.num_parts = self.num_records = self.nbytes = 0

    def find(self, place: Path, problem: str, mended: str = "", *, harmless: bool = False) -> None:
        """Note a flaw; `mended` says what a repair does about it."""
        self.flaws.append(Flaw(place, problem, mended if self.mends else "", harmless))

    def check(self) -> None:
        if self.live:
            self.find(self.directory, "the capture is still running", harmless=True)
        else:
            self._check_leftovers()
        if self.ring is not None:
            told = f"{len(self.stranded)} records of a dead writer are still in its ring"
            self.find(self.ring, told, "moved into their parts")
        models = paths.models_in(self.directory)
        for model in models:
            for step in paths.steps_in(model).values():
                self._check_step(step)
        if self.mends and self.ring is not None:
            self.ring.unlink(missing_ok=True)
        self._check_run()
        for model in models:
            self._check_tokens(model)

    def _check_leftovers(self) -> None:
        for draft in (*self.directory.glob("**/.draft-*"), *self.directory.glob("**/.new-*")):
            if self.mends:
                paths.remove(draft)
            self.find(draft, "a draft that nobody finished", "removed")

    def _check_run(self) -> None:
        place, facts = self.directory / RUN_FILE, self.facts
        if facts and facts.get("schema") not in KNOWN_VERSIONS:
            self.find(place, f"schema {facts.get('schema')}; this dumpcmp knows {SCHEMA_VERSION}")
            return
        if self.live or facts.get("complete") is True:
            return
        told = "is missing or cannot be read" if not facts else "says that the capture "
        if facts:
            told += f"stopped: {p}" if (p := facts.get("problem")) else "never ended"
        if facts.get("repaired"):
            self.find(place, f"{told}; repaired at {facts['repaired']}", harmless=True)
            return
        if self.mends:
            self.rank.write_run(_mended(facts, self.rank))
        self.find(place, told, "the run is marked as repaired")

    def _check_tokens(self, model: Path) -> None:
        """Find steps that are not there, although the capture was told to leave out none."""
        told = self.facts.get("run")
        filters = told.get("filters") if isinstance(told, dict) else None
        everything = isinstance(filters, dict) and not any(
            filters.get(name) for name in ("tokens", "layers", "every")
        )
        steps = paths.steps_in(model)
        first = 0 if everything else min(steps, default=0)
        if missing := listed(gaps(steps, first)):
            self.find(model, f"token {missing} is not there", harmless=not everything)

    def _check_step(self, directory: Path) -> None:
        """Check the parts of one step, the earlier first: later ones link to them."""
        parts = paths.parts_in(directory)
        if missing := listed(gaps(parts)):
            self.find(directory, f"part {missing} is missing")
        if not parts and not self.live:
            empty = not any(directory.iterdir())
            if empty and self.mends:
                directory.rmdir()
            self.find(directory, "the step has no parts", "removed" if empty else "")
        known: dict[int, Contents] = {}
        for number, path in parts.items():
            try:
                contents = self._open(path, number, known)
            except (ArchiveError, OSError) as error:
                self.find(path, getattr(error, "message", str(error)))
                continue
            if contents is not None:
                known[number] = contents
                self.num_parts += 1
        for contents in known.values():
            self._check_values(contents, known)

    def _open(self, path: Path, number: int, known: dict[int, Contents]) -> Contents | None:
        """The contents of a part, sealed first where that is asked for and due."""
        contents = read_part(path, path.parent.parent.name, 0, number, self.stranded)
        if contents.sealed:
            return contents
        if path.stat().st_size <= JOURNAL_AT:
            if self.mends:
                path.unlink()
            self.find(path, "the part holds nothing", "removed")
            return None
        done, problems = "", contents.problems
        if self.mends:
            done = f"sealed with {recover(path, self.stranded, known)} records"
            contents = read_part(path, path.parent.parent.name, 0, number, [])
        for problem in ("the part was not sealed", *problems) if not self.live else ():
            self.find(path, problem, done)
        return contents

    def _check_values(self, contents: Contents, known: dict[int, Contents]) -> None:
        """Check what every row says against the bytes that it points to."""
        try:
            with PartFile(contents.path) as file:
                for number, row in enumerate(contents.rows.tolist()):
                    for problem in self._check_row(file, contents, number, row, known):
                        there = contents.has_row(number)
                        name = "{}#{} {}".format(*contents.name(number)) if there else "a record"
                        self.find(contents.path, f"{name}: {problem}")
        except ArchiveError as error:
            self.find(contents.path, error.message)

    def _check_row(
        self, file: PartFile, contents: Contents, number: int, row: tuple[Any, ...],
        known: dict[int, Contents],
    ) -> Iterator[str]:  # fmt: skip
        call, _, _, part, same, header, offset, nbytes, digest = row
        if call == ABSENT:
            yield f"row {number} was lost"
            return
        self.num_records += 1
        if same != NO_ROW:
            if part not in known or not known[part].has_row(same):
                yield f"links to row {same} of part {part}, which is not there"
            return
        if number in contents.elsewhere or number in contents.datasets:
            return
        if offset + nbytes > file.nbytes:
            yield f"its {nbytes} bytes at {offset} lie beyond the end of the part"
            return
        if digest and _digest(file, offset, nbytes) != digest:
            yield f"its {nbytes} bytes at {offset} have another digest than was recorded"
        if header:
            yield from _check_header(file, header, offset, nbytes)
        self.nbytes += nbytes


def _check_header(file: PartFile, header: int, offset: int, nbytes: int) -> Iterator[str]:
    """Compare the dataset's own object header with the index."""
    try:
        found = dataset(file, header)
    except ArchiveError as error:
        if nbytes:
            yield error.message
        return
    if (found.nbytes, found.address) != (nbytes, offset if nbytes else encoder.UNDEFINED):
        yield f"its object header at {header} points elsewhere than the index"


def _digest(file: PartFile, offset: int, nbytes: int) -> bytes:
    running = xxh3_128()
    for start in range(offset, offset + nbytes, _PIECE):
        running.update(file.read(start, min(_PIECE, offset + nbytes - start)))
    return running.hexdigest().encode()


def _mended(facts: dict[str, Any], rank: RankDirectory) -> dict[str, Any]:
    """run.json of a capture that was cut short, once its parts are sealed."""
    told = {"schema": SCHEMA_VERSION, "world_size": rank.world_size, "rank": rank.rank, "run": {}}
    told |= facts
    told |= {"complete": False, "writer": None, "repaired": paths.now()}
    told["problem"] = facts.get("problem") or "the capture was cut short"
    return told
