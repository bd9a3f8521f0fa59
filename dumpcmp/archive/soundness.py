"""Checks one step of one rank: its parts, and every value in them against its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_128

from dumpcmp.archive import encoder, paths
from dumpcmp.archive.manifest import Kinds, kinds_of, names_of
from dumpcmp.archive.paths import gaps, listed
from dumpcmp.archive.read.agreement import clashes
from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.partfile import PartFile, dataset
from dumpcmp.archive.read.remote import opened
from dumpcmp.archive.read.scan import Found, read_part, record_at
from dumpcmp.archive.read.shared_rows import SharedParts
from dumpcmp.archive.schema import (
    ABSENT,
    JOURNAL_AT,
    NO_ROW,
    SHARED,
    SHARED_DIRECTORY,
    SHARED_STEP,
    json_text,
)
from dumpcmp.archive.write.recovery import recover
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.spoken import counted

_PIECE = 16 << 20  # bytes digested at once


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is not as it should be, and what `repair` did about it."""

    place: Path
    problem: str
    repair: str = ""  # what was done; empty: nothing
    harmless: bool = False  # worth knowing, but nothing is wrong with the archive
    unknown: bool = False  # nobody can tell whether anything is wrong

    @property
    def stands(self) -> bool:
        """Whether it is still wrong."""
        return not (self.repair or self.harmless or self.unknown)


@dataclass(frozen=True, slots=True)
class StepAudit:
    """What a step came to."""

    flaws: tuple[Flaw, ...]
    num_parts: int
    num_records: int
    nbytes: int  # of tensors whose digests were checked
    leads_to: frozenset[int] | None  # which shared parts; None where not all of it can tell
    kinds: Mapping[int, Kinds]  # how many values of each kind a part holds, by its number
    names: Mapping[int, str]  # the digest of what they are called


@dataclass(frozen=True)
class StepTask:
    """A step to check, for whoever sees its directory."""

    directory: Path
    is_live: bool  # it may still be written
    mends: bool = False
    stranded: Sequence[Found] = ()  # what the ring of a dead writer holds

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its parts."""
        return sum(path.stat().st_size for path in paths.parts_in(self.directory).values())


def audit_step(task: StepTask) -> StepAudit:
    """Check a step, and mend it where that is asked for."""
    checking = _StepChecking(task)
    checking.check(task.directory)
    is_shared = task.directory.name == SHARED_DIRECTORY  # whose values steps count as theirs
    counts = checking.num_parts, 0 if is_shared else checking.num_records, checking.nbytes
    flaws = tuple(checking.flaws)
    return StepAudit(flaws, *counts, checking.leads_to, checking.kinds, checking.names)


def audit_steps(tasks: Sequence[StepTask]) -> list[StepAudit]:
    """Check several steps, one after the other."""
    return [audit_step(task) for task in tasks]


class _StepChecking:
    """Goes through the parts of a step, and notes what is wrong."""

    def __init__(self, task: StepTask) -> None:
        self.live, self.mends, self.stranded = task.is_live, task.mends, list(task.stranded)
        self.flaws: list[Flaw] = []
        self.num_parts = self.num_records = self.nbytes = 0
        self.leads_to: frozenset[int] | None = None
        self.kinds: dict[int, Kinds] = {}
        self.names: dict[int, str] = {}

    def find(self, place: Path, problem: str, mended: str = "") -> None:
        """Note a flaw; `mended` says what a repair does about it."""
        self.flaws.append(Flaw(place, problem, mended if self.mends else ""))

    def check(self, directory: Path) -> None:
        """Check the parts of one step, the earlier first: later ones link to them."""
        parts = paths.parts_in(directory)
        if missing := listed(gaps(parts)):
            self.find(directory, f"part {missing} is missing")
        if not parts and not self.live:
            empty = not any(directory.iterdir())
            if empty and self.mends:
                directory.rmdir()
            self.find(
                directory,
                "the directory has no parts"
                if directory.name == SHARED_DIRECTORY
                else "the step has no parts",
                "removed" if empty else "",
            )
        shared = SharedParts(directory.parent)
        known: dict[int, Contents] = {}
        for number, path in parts.items():
            try:
                contents = self._open(path, number, known, shared)
            except (ArchiveError, OSError) as error:
                self.find(path, getattr(error, "message", str(error)))
                continue
            if contents is not None:
                known[number] = contents
                self.num_parts += 1
                self._count(number, contents)
        own = [each for number, each in known.items() if number < SHARED]
        if len(own) == len(parts) and not missing and all(each.sealed for each in own):
            self.leads_to = frozenset().union(*map(_shared_parts, own))
        for contents in own:
            self._check_values(contents, known)

    def _count(self, number: int, contents: Contents) -> None:
        """Count what a part holds; what cannot be read of it is found by whoever checks it."""
        slots = [form.slot for form in contents.forms]
        self.kinds[number] = kinds_of(contents.rows, slots)
        with suppress(ArchiveError), opened(contents.path) as file:
            if record_at(file, JOURNAL_AT, None) is not None:  # other tools order rows otherwise
                calls = map(json_text, contents.listed_calls.listed)
                self.names[number] = names_of(contents.rows, calls, contents.forms)

    def _open(
        self, path: Path, number: int, known: dict[int, Contents], shared: SharedParts
    ) -> Contents | None:
        """The contents of a part, sealed first where that is asked for and due.

        What it leads to of what steps share is `known` then, if it can be read.
        """
        contents = read_part(path, *_place_of(path.parent), number, self.stranded)
        others = _shared_parts(contents)
        shared.look_for(others)
        for other in others:
            if isinstance(found := shared.get(other), Contents):
                known[other] = found
        if contents.sealed:
            for problem in contents.problems:
                self.find(path, problem)
            return contents
        if path.stat().st_size <= JOURNAL_AT:
            if self.mends:
                path.unlink()
            self.find(path, "the part holds nothing", "removed")
            return None
        done, problems = "", contents.problems
        if self.mends:
            done = f"sealed with {counted(recover(path, self.stranded, known), 'record')}"
            contents = read_part(path, *_place_of(path.parent), number, [])
        for problem in ("the part was not sealed", *problems) if not self.live else ():
            self.find(path, problem, done)
        return contents

    def _check_values(self, contents: Contents, known: dict[int, Contents]) -> None:
        """Check what every row says against the bytes that it points to."""
        try:
            with opened(contents.path) as file:
                self._check_index(file, contents)
                for number, row in enumerate(contents.rows.tolist()):
                    for problem in self._check_row(file, contents, number, row, known):
                        there = contents.has_row(number)
                        name = "{}#{} {}".format(*contents.name(number)) if there else "a record"
                        self.find(contents.path, f"{name}: {problem}")
        except ArchiveError as error:
            self.find(contents.path, error.message)

    def _check_index(self, file: PartFile, contents: Contents) -> None:
        """Check that the index can be read, and says what the journal says, where that has it."""
        for problem in clashes(file, contents) if contents.sealed else ():
            self.find(contents.path, problem)
        contents.calls()

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
                named = f"shared part {part - SHARED}" if part >= SHARED else f"part {part}"
                yield f"links to row {same} of {named}, which is not there"
            elif part >= SHARED and digest not in (b"", known[part].rows["digest"][same]):
                yield f"row {same} of shared part {part - SHARED} holds another value"
            return
        if known.get(part) is not contents:
            yield f"its bytes are said to lie in part {part}, and it is no link"
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


def _place_of(directory: Path) -> tuple[str, int]:
    """The model of a directory of parts, as it is called on disk, and its step."""
    is_shared = directory.name == SHARED_DIRECTORY
    return directory.parent.name, SHARED_STEP if is_shared else int(directory.name)


def _shared_parts(contents: Contents) -> list[int]:
    """The shared parts that rows of a part lead to."""
    numbers = contents.rows["part"]
    found: list[int] = np.unique(numbers[numbers >= SHARED]).tolist()
    return found


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
