"""Remembers which ops have passed, so that a second run of a graph skips them.

One line of JSON an op, appended as soon as it has passed. A line that was torn by a crash is
ignored: its op is verified again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import xxhash

from dumpcmp.nouns.errors import DumpcmpError, ProgramFileError
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.version import __version__
from dumpcmp.partitioning.call import Candidate
from dumpcmp.partitioning.checking import Settings
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.findings import Finding
from dumpcmp.partitioning.rules.ruling import NoRule
from dumpcmp.partitioning.table import entry_for
from dumpcmp.pytorch.plain_files import read_plain

_LARGEST = 1 << 30  # bytes of what is remembered


def key_of(candidate: Candidate, settings: Settings, backend: str) -> str:
    """Names what was verified by content: op, arguments, how it ran, and under which versions."""
    versions = (torch.__version__, __version__)
    content = f"{candidate.identity} {_rule(candidate)} {settings} {backend} {versions}"
    return xxhash.xxh3_128_hexdigest(content.encode())


def _rule(candidate: Candidate) -> str:
    """What the table or the user says about the op now; an op that passed has an annotation."""
    if candidate.reason:
        return ""  # it is not to be verified: nothing is imported for it
    try:
        entry = entry_for(candidate.call, candidate.anno)
    except (NoRule, DumpcmpError):
        return ""
    return f"{entry.inputs} {entry.ruling}"


class Verified:
    """The file of ops that have passed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_asked = 0  # ops whose rows were taken from here
        self._known = dict(_read(path)) if path.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def rows(self, key: str) -> list[Finding]:
        """What was found when the op of `key` passed."""
        self.num_asked += 1
        return self._known[key]

    def add(self, key: str, rows: Sequence[Finding]) -> None:
        """Remember `rows` if all of them passed."""
        if key in self._known or any(row.verdict is not Verdict.PASS for row in rows):
            return
        line = json.dumps({"key": key, "rows": [asdict(row) for row in rows]})
        with self.path.open("a") as file:
            file.write(line + "\n")


def _read(path: Path) -> list[tuple[str, list[Finding]]]:
    known = []
    try:
        text = read_plain(path, _LARGEST).decode(errors="replace")
    except ProgramFileError as error:
        raise PartitionError(error.message, hint=error.hint) from error
    for line in text.splitlines():
        try:
            stored = json.loads(line)
            known.append((stored["key"], [_found(row) for row in stored["rows"]]))
        except (ValueError, KeyError, TypeError):
            continue  # torn by a crash: the op is verified again
    return known


def _found(stored: dict[str, Any]) -> Finding:
    return Finding(**{**stored, "verdict": Verdict(stored["verdict"])})
