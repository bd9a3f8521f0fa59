"""Which generated kernel computes a root, and where its source is: of compiled runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from dumpcmp.archive.paths import own_text
from dumpcmp.archive.read.reader import Archive, source_of
from dumpcmp.archive.stores.urls import place
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row

MOST_KERNELS = 8  # whose source a report has
_MOST_LINES = 400  # of one
_COMPUTES = re.compile(r"\btmp\d+\b")  # Inductor calls every value in a kernel so


class KernelSource(NamedTuple):
    """The source of a kernel in the generated code that the archive keeps."""

    kernel: str
    file: str
    first: int  # number of the first line
    lines: tuple[str, ...]
    meant: int  # the line that names the op, or else the first that computes, or the first
    roots: tuple[str, ...] = ()  # what begins to differ in it

    def excerpt(self, most: int) -> Iterator[tuple[int, str]]:
        """The numbered lines that compute, up to `most`, without the indent that all have.

        Where there are more, those around the one that is meant.
        """
        computing = [n for n, line in enumerate(self.lines) if _COMPUTES.search(line)]
        start, end = (computing[0], computing[-1] + 1) if computing else (0, len(self.lines))
        start = max(start, min(self.meant - self.first - most // 2, end - most))
        chosen = self.lines[start : min(end, start + most)]
        yield from enumerate(dedent("\n".join(chosen)).split("\n"), self.first + start)


def kernels_of(outcome: Outcome) -> list[KernelSource]:
    """The kernels of the first roots, each once."""
    found: dict[str, KernelSource] = {}
    for row in outcome.roots:
        is_new = row.kernel not in found and len(found) < MOST_KERNELS
        told = kernel_source(outcome, row) if is_new else found.get(row.kernel)
        if told is not None:
            found[row.kernel] = told._replace(roots=(*told.roots, str(row.key)))
    return list(found.values())


def kernel_source(outcome: Outcome, row: Row) -> KernelSource | None:
    """The kernel that computes `row` on my side; None where its archive, or its source, is gone."""
    path = place(outcome.background.target.path or ".")
    if not row.kernel or not outcome.background.target.path or not path.exists():
        return None
    model = (row.target_key or row.key).model
    for (_, name, file_name), file in sorted(Archive(path).texts.items()):
        is_code = name == model and file_name.startswith("code-")
        if is_code and (told := _source_in(file, row)):
            return told
    return None


def _source_in(file: Path, row: Row) -> KernelSource | None:
    code = own_text(file)
    source = source_of(code, row.kernel)
    if not source:
        return None
    first = code.count("\n", 0, code.index(source)) + 1
    lines = tuple(source.splitlines()[:_MOST_LINES])
    named = [n for n, line in enumerate(lines) if n and _names(line, row)]
    computing = (n for n, line in enumerate(lines) if _COMPUTES.search(line))
    meant = named[0] if named else next(computing, 0)
    return KernelSource(row.kernel, str(file), first, lines, first + meant)


def _names(line: str, row: Row) -> bool:
    return f"{row.key.op.function.partition('.')[0]}(" in line
