"""What a rank wrote, counted and sealed at its end: readers hold what they find against it."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128, xxh3_128_hexdigest

from dumpcmp.archive.paths import listed
from dumpcmp.archive.schema import (
    ABSENT,
    MANIFEST_COLUMNS,
    MANIFEST_FILE,
    NO_ROW,
    SHARED,
    Form,
    json_text,
)
from dumpcmp.nouns.budgets import MANIFEST
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.spoken import counted, plural

_HINT = "copy the archive again, or compare what is left of it with --partial"

Kinds = Mapping[str, int]  # how many values there are of each kind of slot
ModelStep = tuple[str, int]


def kinds_of(rows: NDArray[np.void], slots: Sequence[str]) -> dict[str, int]:
    """How many values of a part there are of each kind; `slots` are those of its forms."""
    forms = rows["form"][rows["call"] != ABSENT]
    found: Counter[str] = Counter()
    for slot, number in zip(slots, np.bincount(forms, minlength=len(slots)).tolist(), strict=True):
        found[slot.partition(".")[0]] += number
    return {kind: number for kind, number in sorted(found.items()) if number}


def names_of(rows: NDArray[np.void], calls: Iterable[bytes], forms: Sequence[Form]) -> str:
    """The digest of what the values of a part are; `calls` are JSON, as its index has them.

    Compacting changes what is stored of a value, and leaves this as it is.
    """
    used = np.zeros(len(forms), bool)
    used[rows["form"]] = True
    told = [json_text([form.slot, form.dtype, form.shape]) for form in forms]
    every = sorted({each for each, is_used in zip(told, used.tolist(), strict=True) if is_used})
    places = {each: place for place, each in enumerate(every)}
    numbers = np.array([places.get(each, 0) for each in told] or [0], "<u4")
    running = xxh3_128(b",\n".join([*calls, *every]))
    running.update(rows["call"].astype("<u4").tobytes())
    running.update(numbers[rows["form"]].tobytes())
    running.update(rows["order"].astype("<u8").tobytes())
    links = np.where(rows["part"] < SHARED, rows["same"], NO_ROW)
    running.update(links.astype("<u4").tobytes())
    return running.hexdigest()


@dataclass(frozen=True, slots=True)
class PartCount:
    """What a sealed part holds: how many values of each kind, and the digest of their names."""

    model: str
    step: int
    part: int
    values: Kinds
    names: str

    @property
    def num_values(self) -> int:
        return sum(self.values.values())

    @property
    def line(self) -> list[Any]:
        """It as MANIFEST_COLUMNS, but the seal."""
        return [self.model, self.step, self.part, dict(self.values), self.names]

    @classmethod
    def read(cls, line: Any) -> Self:
        """The reverse; ValueError or TypeError where it is none."""
        model, step, part, values, names = line
        kinds = (str, int, int, dict, str)
        if [type(each) for each in line] != list(kinds) or not all(
            type(number) is int for number in values.values()
        ):
            raise ValueError(f"{str(line)[:80]} is no part")
        return cls(model, step, part, values, names)

    def lacks(self, found: Kinds) -> str:
        """How what was `found` of the part differs from what was written; empty where it does not.

        A kind of which there is more than was written differs as well.
        """
        for kind in sorted({*self.values, *found}):
            number, wanted = found.get(kind, 0), self.values.get(kind, 0)
            if number != wanted:
                return f"part {self.part} has {number} of {counted(wanted, f'{kind} value')}"
        return ""


@dataclass(frozen=True)
class Manifest:
    """The parts that a rank has written, in the order in which they were sealed."""

    parts: tuple[PartCount, ...] = ()

    @cached_property
    def steps(self) -> dict[ModelStep, dict[int, PartCount]]:
        """The parts of each step, by their number."""
        found: dict[ModelStep, dict[int, PartCount]] = {}
        for each in self.parts:
            found.setdefault((each.model, each.step), {})[each.part] = each
        return found

    @cached_property
    def _seals(self) -> list[str]:
        seals: list[str] = []
        for each in self.parts:
            before = seals[-1] if seals else ""
            seals.append(xxh3_128_hexdigest(before.encode() + json_text(each.line)))
        return seals

    @property
    def seal(self) -> str:
        """The last seal, which depends on all lines; that of nothing is one too."""
        return self._seals[-1] if self.parts else xxh3_128_hexdigest(b"")

    def has_seals(self, seals: Sequence[Any]) -> bool:
        """Whether these are the seals of its lines."""
        return list(seals) == list(self._seals)

    def write(self, directory: Path) -> None:
        """Write it into the directory of its rank; what run.json says of it is its `seal`."""
        lines = zip(self.parts, self._seals, strict=True)
        text = ",\n".join(json_text([*each.line, seal]).decode() for each, seal in lines)
        write_whole(directory / MANIFEST_FILE, f"[{text}]\n")

    def lost_steps(self, steps: Mapping[str, Collection[int]]) -> Iterator[str]:
        """What is wrong with the `steps` of each model that are there: one is gone, or is added."""
        lost: dict[str, list[int]] = {}
        for model, step in self.steps:
            if step not in steps.get(model, ()):
                lost.setdefault(model, []).append(step)
        for model, gone in lost.items():
            parts = (part for step in gone for part in self.steps[model, step].values())
            values = counted(sum(part.num_values for part in parts), "value")
            are = plural(len(gone), "is", "are")
            yield f"{_tokens(gone)} of {model} {are} gone, with {values} that the run wrote"
        for model, there in steps.items():
            more = [step for step in there if (model, step) not in self.steps]
            if more:
                yield f"{_tokens(more)} of {model} was not written by this run"

    def lost_parts(
        self, step: ModelStep, found: Mapping[int, Kinds], names: Mapping[int, str] | None = None
    ) -> Iterator[str]:
        """What is wrong with the parts of a `step` that is there, by what was `found` in each.

        With `names`, the digests of the names in some of them, these are held against it too.
        """
        model, number = step
        wanted = self.steps.get(step, {})
        gone = [part for part in wanted if part not in found]
        if gone:
            values = counted(sum(wanted[part].num_values for part in gone), "value")
            told = f"{plural(len(gone), 'part')} {listed(gone)} {plural(len(gone), 'is', 'are')}"
            yield f"token {number} of {model}: {told} gone, with {values} that the run wrote"
        for part, kinds in found.items():
            if part not in wanted:
                if wanted:
                    yield f"token {number} of {model}: part {part} was not written by this run"
            elif lacks := wanted[part].lacks(kinds):
                yield f"token {number} of {model}: {lacks} that the run wrote"
            elif names is not None and names.get(part, wanted[part].names) != wanted[part].names:
                told = f"part {part} holds other values than the run wrote"
                yield f"token {number} of {model}: {told}"


def _tokens(steps: Sequence[int]) -> str:
    return f"{plural(len(steps), 'token')} {listed(sorted(steps))}"


def read_manifest(directory: Path, facts: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a rank whose run.json says `facts`; None where the run has none.

    ArchiveError where it should be there and is not, or is not the one that run.json names.
    """
    seal = facts.get("manifest", "")
    if not seal or facts.get("complete") is not True:
        return None
    path = directory / MANIFEST_FILE
    parts, seals = _lines_of(path)
    manifest = Manifest(parts)
    if manifest.seal != seal or not manifest.has_seals(seals):
        raise ArchiveError(
            f"{path} is not the one that run.json names, which has the seal {str(seal)[:40]}",
            hint=_HINT,
        )
    return manifest


def _lines_of(path: Path) -> tuple[tuple[PartCount, ...], list[Any]]:
    """The parts, and the seal of each line."""
    width = len(MANIFEST_COLUMNS)
    try:
        told = path.lstat()
        if not stat.S_ISREG(told.st_mode) or told.st_size > MANIFEST.nbytes:
            raise ValueError("it is no file of such a size")
        lines = json.loads(path.read_bytes())
        if not isinstance(lines, list) or any(len(line) != width for line in lines):
            raise ValueError("it is no list of parts")
        return tuple(PartCount.read(line[:-1]) for line in lines), [line[-1] for line in lines]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(
            f"{path}, which run.json names, cannot be read: {why}", hint=_HINT
        ) from None
