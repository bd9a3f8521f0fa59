"""A golden run as a small file that a repository can hold, and a program held against it."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any

from dumpcmp.archive.copies import copied_here, copy_here, written_there
from dumpcmp.archive.paths import own_bytes, own_files
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.compacting import compact
from dumpcmp.comparing import compare
from dumpcmp.comparing.showing import told_of
from dumpcmp.dumping.programs import Dumped, dump, script_program
from dumpcmp.nouns.background import RunTold
from dumpcmp.nouns.budgets import FIXTURE, MOST_INFLATED, RUN, Spending
from dumpcmp.nouns.errors import ArchiveError, CaptureError, DumpcmpError
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.selection import spelled

FIXTURE_VERSION = 1  # any change to what is in the file bumps it
_MANIFEST = "golden.json"
_FREELY = 1 << 30  # bytes that a fixture may become, however small it is
_RUN = "run"  # the directory of the archive in the file


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """A fixture that was written."""

    path: Path
    nbytes_before: int  # of the archive
    nbytes: int  # of the file

    def __str__(self) -> str:
        sizes = f"{readable(self.nbytes_before)} -> {readable(self.nbytes)}"
        return f"{self.path}: {sizes}"


def pack_golden(
    archive: str | Path,
    path: str | Path,
    *,
    keep_full: Sequence[str] = (),
    sketch: int = 512,
    overwrite: bool = False,
) -> GoldenFile:
    """Write the run at `archive` into one file: Summaries, the tensors of `keep_full`, its facts.

    The archive itself is left as it is. `keep_full` are globs over ops whose tensors stay whole.
    """
    source, target = place(archive), place(path)
    run = Archive(source)
    if not run.complete:
        raise ArchiveError(
            f"{source} is not whole: {'; '.join(run.problems)}", hint="dump the golden run again"
        )
    if target.exists() and not overwrite:
        raise ArchiveError(
            f"{target} is there already",
            hint="give another name, or replace it: --overwrite, or overwrite=True",
        )
    with TemporaryDirectory(prefix="dumpcmp-") as room, written_there(target) as file:
        copied = Path(room, _RUN)
        if isinstance(source, RemotePath):
            copy_here(source, copied)
        else:
            for each in own_files(source):
                there = copied / each.relative_to(source)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(each, there)
        before = _nbytes(copied)
        done = compact(copied, keep_full=keep_full, sketch=sketch)
        if done.problems:
            raise ArchiveError(f"{source} cannot be made small: {done.problems[0]}")
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as draft, tarfile.open(draft, "w:xz") as tar:
            _add(tar, _MANIFEST, json.dumps(_manifest(run), indent=1).encode())
            for each in sorted(own_files(copied)):
                name = f"{_RUN}/{each.relative_to(copied).as_posix()}"
                _add(tar, name, each.read_bytes())
        nbytes = file.stat().st_size
    return GoldenFile(target, before, nbytes)


def _manifest(run: Archive) -> dict[str, Any]:
    facts = next(iter(run.run.values()), {}).get("run", {})
    asked = ("mode", "seed", "dtype", "filters")
    return {
        "version": FIXTURE_VERSION,
        "asked": {name: facts.get(name) for name in asked},
        "facts": dict(told_of(run).facts),
    }


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file that tells nothing of who packed it, and when."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, BytesIO(content))


def _nbytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """What a program came to, held against a fixture."""

    outcome: Outcome
    dumped: Dumped
    differences: tuple[str, ...]  # facts in which the run is another than the golden one

    def raise_for_status(self) -> None:
        """Raise VerificationError with the worst of it, unless the runs are the same."""
        self.outcome.raise_for_status()


def check_golden(
    fixture: str | Path,
    program: str | Path | Callable[[], object],
    *arguments: str,
    path: str | Path | None = None,
    **options: Any,
) -> GoldenCheck:
    """Dump `program` as the golden run was dumped, and compare. `options` are those of `compare`.

        dumpcmp.check_golden("golden.tar", "generate.py", "--prompt", "hi").raise_for_status()

    A program is a script, which gets the `arguments`, or a function that runs it. The dump is
    kept only if a `path` is given for it.
    """
    run = program if callable(program) else script_program(str(program), arguments)
    with (
        copied_here(fixture) as file,
        unpacked_golden(file) as (asked, golden),
        TemporaryDirectory() as room,
    ):
        mine = place(path) if path else Path(room, "mine")
        dumped = dump(run, mine, overwrite=path is None, **asked.options)
        if dumped.error is not None or dumped.is_empty or dumped.problem:
            why = dumped.problem or (f"it raised {dumped.error!r}" if dumped.error else "nothing")
            raise CaptureError(
                f"the program was not recorded: {why}",
                hint="run it by itself first: dumpcmp dump --path d2 SCRIPT",
            )
        outcome = _lasting(compare(golden, mine, **options), is_kept=path is not None)
        told = dict(told_of(Archive(mine)).facts)
        return GoldenCheck(outcome, dumped, tuple(_differences(asked.facts, told)))


def _lasting(outcome: Outcome, *, is_kept: bool) -> Outcome:
    """`outcome` without what is gone once the check is over, or is of the check and no run."""
    golden, mine = outcome.background.golden, outcome.background.target
    facts = tuple(fact for fact in mine.facts if fact[0] != "command")
    mine = RunTold(mine.path if is_kept else "", facts)
    background = replace(outcome.background, golden=replace(golden, path=""), target=mine)
    return replace(outcome, background=background)


def _asked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """How the golden run was dumped, in the words of `dump`; ValueError where it cannot be so."""
    filters = _one_of(asked.get("filters") or {}, dict)
    spans = [range(first, last + 1) for first, last in filters.get("tokens") or ()]
    layers = _one_of(filters.get("layers") or [], list)
    return {
        "mode": _one_of(asked.get("mode") or "eager", str),
        "seed": _number(asked.get("seed")),
        "dtype": _one_of(asked.get("dtype"), str, NoneType),
        "tokens": ",".join(map(spelled, spans)) or None,
        "layers": [_one_of(layer, str) for layer in layers] or None,
        "io": _one_of(filters.get("io", "all"), str),
        "level": _one_of(filters.get("level", "functions"), str),
        "backward": bool(filters.get("backward")),
        "weights": bool(filters.get("weights")),
    }


def _one_of(told: Any, *kinds: type) -> Any:
    if not isinstance(told, kinds):
        raise TypeError(f"{str(told)[:40]!r} stands where a {kinds[0].__name__} does")
    return told


def _number(seed: Any) -> int | None:
    if seed is not None and (type(seed) is not int or not -(1 << 63) <= seed < 1 << 64):
        raise ValueError(f"{str(seed)[:40]!r} is no seed")
    return seed


def _differences(golden: Mapping[str, str], mine: Mapping[str, str]) -> Iterator[str]:
    for name, was in golden.items():
        now = mine.get(name, "")
        if (
            name.startswith(("versions.", "environment.", "shortcuts", "num_threads"))
            and now != was
        ):
            yield f"{name}: golden {was}, here {now or 'unknown'}"


@dataclass(frozen=True, slots=True)
class FixtureFacts:
    """What a fixture tells: how its run was dumped, in the words of `dump`, and where it ran."""

    options: Mapping[str, Any]
    facts: Mapping[str, str]

    @classmethod
    def read(cls, content: bytes | None) -> FixtureFacts:
        """The reverse of `_manifest`; ValueError and its like where that did not write it."""
        if content is None:
            raise ValueError(f"it has no {_MANIFEST}")
        told = _one_of(json.loads(content), dict)
        if lacking := {"version", "asked", "facts"} - told.keys():
            raise ValueError(f"it does not tell its {min(lacking)}")
        version = told["version"]
        if version != FIXTURE_VERSION:
            raise ValueError(f"it has version {version!a}, this dumpcmp knows {FIXTURE_VERSION}")
        facts = _one_of(told["facts"], dict)
        options = _asked(_one_of(told["asked"], dict))
        return cls(options, {name: str(fact) for name, fact in facts.items()})


@contextmanager
def unpacked_golden(fixture: Path) -> Iterator[tuple[FixtureFacts, Path]]:
    """The facts of a fixture, and its archive in a directory that is gone after the block."""
    with TemporaryDirectory(prefix="dumpcmp-") as room:
        try:
            _unpack_all(fixture, Path(room))
            asked = FixtureFacts.read(own_bytes(Path(room, _MANIFEST), RUN.nbytes))
        except DumpcmpError:
            raise
        except Exception as error:  # of tarfile, of each way to compress, and of what is in it
            hint = "write one: dumpcmp golden pack d1 golden.tar"
            problem = str(error).partition("\n")[0].removesuffix(":")  # tarfile says all it tried
            raise ArchiveError(f"{fixture} is no golden fixture: {problem}", hint=hint) from error
        yield asked, Path(room, _RUN)


def _unpack_all(fixture: Path, room: Path) -> None:
    nbytes = fixture.stat().st_size
    total, spending = 0, Spending(FIXTURE, fixture, nbytes)
    most = min(FIXTURE.nbytes, max(_FREELY, MOST_INFLATED * nbytes))
    budget = replace(FIXTURE, nbytes=most)
    with tarfile.open(fixture) as tar:
        for entry in tar:
            spending.name()
            total += entry.size
            Spending(budget, fixture, total)  # before anything of it is unpacked
            _unpack(tar, entry, room, fixture)
            spending.look()


def _unpack(tar: tarfile.TarFile, entry: tarfile.TarInfo, room: Path, fixture: Path) -> None:
    """Unpack one file; whatever is no plain file below the room is refused."""
    name = PurePosixPath(entry.name)
    content = tar.extractfile(entry) if entry.isreg() else None
    odd = name.is_absolute() or ".." in name.parts or "\\" in entry.name
    if content is None or odd:
        raise ArchiveError(f"{fixture} holds {entry.name!r}, which no fixture has")
    place = room.joinpath(*name.parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        shutil.copyfileobj(content, file)
