"""Audits an archive against itself: schema, digests, torn records, missing ranks, leftovers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import encoder
from dumpcmp.archive.directory import RankDirectory, now, parts_in, rank_directories, steps_in
from dumpcmp.archive.escaping import gaps, listed
from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.decoder import PartFile, dataset
from dumpcmp.archive.read.rankstep import read_part
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import Found, ring_records
from dumpcmp.archive.remains import read_run, ring_left_by, writer_lives
from dumpcmp.archive.schema import ABSENT, JOURNAL_AT, NO_ROW, RUN_FILE, SCHEMA_VERSION
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
    archive = Archive(path)
    auditing = _Auditing(archive.path, repair)
    if missing := listed(archive.missing_ranks):
        auditing.find(archive.path, f"rank {missing} of {archive.world_size} is missing")
    for directory, (world_size, rank) in rank_directories(archive.path).items():
        auditing.check_rank(directory, RankDirectory(archive.path, rank, world_size))
    auditing.compare_steps(archive)
    return auditing.audit()


class _Auditing:
    def __init__(self, path: Path, repair: bool) -> None:
        self.path, self.repair = path, repair
        self.findings: list[Flaw] = []
        self.num_parts = self.num_records = self.nbytes = 0

    def audit(self) -> Audit:
        found = tuple(self.findings)
        return Audit(self.path, found, self.num_parts, self.num_records, self.nbytes)

    def find(
        self, place: Path, problem: str, repaired: str = "", *, harmless: bool = False
    ) -> None:
        self.findings.append(Flaw(place, problem, repaired, harmless))

    def check_rank(self, directory: Path, rank: RankDirectory) -> None:
        """Check one rank: its run.json, its parts, and what should not be there."""
        facts = read_run(directory)
        live = writer_lives(facts, directory)
        if live:
            self.find(directory, "the capture is still running", harmless=True)
        ring = ring_left_by(directory)
        stranded = list(ring_records(ring)) if ring else []
        mends = self.repair and not live
        if ring is not None:
            self.find(ring, f"{len(stranded)} records of a dead writer are still in its ring",
                      "moved into their parts" if mends else "")  # fmt: skip
        self._check_leftovers(directory, mends, live)
        for model in sorted(path for path in directory.iterdir() if path.is_dir()):
            for step in steps_in(model).values():
                self._check_step(step, stranded, mends, live)
        if mends and ring is not None:
            ring.unlink(missing_ok=True)
        self._check_run(directory, facts, rank, mends, live)
        self._check_tokens(directory, facts)

    def _check_run(
        self, directory: Path, facts: dict[str, Any], rank: RankDirectory, mends: bool, live: bool
    ) -> None:
        place = directory / RUN_FILE
        if facts and facts.get("schema") != SCHEMA_VERSION:
            self.find(place, f"schema {facts.get('schema')}; this dumpcmp knows {SCHEMA_VERSION}")
            return
        if live or facts.get("complete") is True:
            return
        told = "is missing or cannot be read" if not facts else "says that the capture "
        if facts:
            told += f"stopped: {p}" if (p := facts.get("problem")) else "never ended"
        if facts.get("repaired"):
            self.find(place, f"{told}; repaired at {facts['repaired']}", harmless=True)
            return
        if mends:
            rank.write_run(_mended(facts, rank))
        self.find(place, told, "the run is marked as repaired" if mends else "")

    def _check_tokens(self, directory: Path, facts: dict[str, Any]) -> None:
        """Find steps that are not there, although the capture was told to leave out none."""
        told = facts.get("run")
        filters = told.get("filters") if isinstance(told, dict) else None
        everything = isinstance(filters, dict) and not (
            filters.get("tokens") or filters.get("layers")
        )
        for model in sorted(path for path in directory.iterdir() if path.is_dir()):
            steps = steps_in(model)
            first = 0 if everything else min(steps, default=0)
            if missing := listed(gaps(steps, first)):
                self.find(model, f"token {missing} is not there", harmless=not everything)

    def _check_step(self, directory: Path, stranded: list[Found], mends: bool, live: bool) -> None:
        """Check the parts of one step, the earlier first: later ones link to them."""
        paths = parts_in(directory)
        if missing := listed(gaps(paths)):
            self.find(directory, f"part {missing} is missing")
        if not paths and not live:
            empty = mends and not any(directory.iterdir())
            if empty:
                directory.rmdir()
            self.find(directory, "the step has no parts", "removed" if empty else "")
        known: dict[int, Contents] = {}
        for number, path in paths.items():
            contents = self._open(path, number, stranded, mends, live, known)
            if contents is not None:
                known[number] = contents
                self.num_parts += 1
        for contents in known.values():
            self._check_values(contents, known)

    def _open(
        self, path: Path, number: int, stranded: list[Found], mends: bool, live: bool,
        known: dict[int, Contents],
    ) -> Contents | None:  # fmt: skip
        """The contents of a part, sealed first where that is asked for and due."""
        try:
            contents = read_part(path, path.parent.parent.name, 0, number, stranded)
            if contents.sealed:
                return contents
            if path.stat().st_size <= JOURNAL_AT:
                if mends:
                    path.unlink()
                self.find(path, "the part holds nothing", "removed" if mends else "")
                return None
            done, problems = "", contents.problems
            if mends:
                done = f"sealed with {recover(path, stranded, known)} records"
                contents = read_part(path, path.parent.parent.name, 0, number, [])
            if not live:
                for problem in ("the part was not sealed", *problems):
                    self.find(path, problem, done)
        except (ArchiveError, OSError) as error:
            self.find(path, getattr(error, "message", str(error)))
            return None
        return contents

    def _check_values(self, contents: Contents, known: dict[int, Contents]) -> None:
        """Check what every row says against the bytes that it points to."""
        try:
            with PartFile(contents.path) as file:
                for number, row in enumerate(contents.rows):
                    for problem in self._check_row(file, contents, number, row.item(), known):
                        self.find(contents.path, f"{_named(contents, row)}: {problem}")
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
            holder = known.get(part)
            if holder is None or not holder.has_row(same):
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

    def _check_leftovers(self, directory: Path, mends: bool, live: bool) -> None:
        if live:
            return
        for draft in (*directory.glob("**/.draft-*"), *directory.glob("**/.new-*")):
            if mends:
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
            self.find(draft, "a draft that nobody finished", "removed" if mends else "")

    def compare_steps(self, archive: Archive) -> None:
        """Find the steps that some ranks have and others have not."""
        for model in archive.models:
            for step in archive.steps(model):
                here = set(archive.ranks_with(model, step))
                for rank in set(archive.ranks) - here:
                    self.find(archive.path, f"rank {rank} has no step {step} of {model}, others do")


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
    if nbytes <= _PIECE:
        return xxh3_128_hexdigest(file.read(offset, nbytes)).encode()
    import xxhash

    running = xxhash.xxh3_128()
    for start in range(offset, offset + nbytes, _PIECE):
        running.update(file.read(start, min(_PIECE, offset + nbytes - start)))
    return running.hexdigest().encode()


def _named(contents: Contents, row: Any) -> str:
    if row["call"] == ABSENT:
        return "a record"
    op, call = contents.ops[row["call"]]
    return f"{op}#{call} {contents.forms[row['form']].slot}"


def _mended(facts: dict[str, Any], rank: RankDirectory) -> dict[str, Any]:
    """run.json of a capture that was cut short, once its parts are sealed."""
    told = {"schema": SCHEMA_VERSION, "world_size": rank.world_size, "rank": rank.rank, "run": {}}
    told |= facts
    told |= {"complete": False, "writer": None, "repaired": now()}
    told["problem"] = facts.get("problem") or "the capture was cut short"
    return told
