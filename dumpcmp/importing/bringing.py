"""Writes what was gathered from another tool's files into an archive, part by part."""

from __future__ import annotations

import math
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dumpcmp.archive.copies import spool_room
from dumpcmp.archive.paths import RankDirectory, rank_directories
from dumpcmp.archive.schema import RUN_FILE
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.archive.upload import check_free, upload
from dumpcmp.archive.write.straight import PartPlace, PartTold, StraightRun, straight
from dumpcmp.engines.engine import Workers, is_elsewhere, whole_path, workers_of
from dumpcmp.execute import run_each
from dumpcmp.importing.foreign import Foreign, ForeignFile, ForeignFileError
from dumpcmp.importing.gathering import SourceFiles, Titled, find, gather, opened
from dumpcmp.importing.titles import Title
from dumpcmp.nouns.errors import ArchiveError, EngineError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.record import Call, Record, Source
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.version import __version__

MOST_NBYTES = 256 << 20  # of a part, unless it is one value
MOST_VALUES = 16_384  # of a part


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to, up to now or in all."""

    path: Path
    format: str
    num_values: int
    nbytes: int
    num_ranks: int
    num_steps: int
    left_out: tuple[str, ...] = ()  # files of which nothing was taken
    problems: tuple[str, ...] = ()  # of values whose elements could not be had

    def __str__(self) -> str:
        tool = "" if self.format == "auto" else f", from {self.format}"
        return (
            f"{self.path}: {counted(self.num_values, 'value')}, {readable(self.nbytes)}; "
            f"tokens: {self.num_steps}, ranks: {self.num_ranks}{tool}"
        )


@dataclass(frozen=True, slots=True)
class ImportTask:
    """One part of the archive that is to be written."""

    place: PartPlace
    format: str
    calls: tuple[Call, ...]
    values: tuple[tuple[Foreign, Record], ...]


def import_dump(
    source: str | Path,
    path: str | Path,
    *,
    format: str = "auto",
    pattern: str | None = None,
    files: Sequence[str] = (),
    model: str = "Model",
    overwrite: bool = False,
    jobs: int = 1,
    executor: Workers | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Turn the files of another tool at `source` into an archive at `path`; both may be URLs.

    `format` is the tool's, `pattern` a regular expression that reads names by its groups step,
    rank, op, slot, call and order, `files` are globs over paths below `source`. `jobs` processes,
    or the workers of an `executor` as for `compare`, share the files and the parts. `progress` is
    told how many parts are done, of how many.
    """
    roots = [place(whole_path(each) if is_elsewhere(executor) else each) for each in (source, path)]
    found = find(roots[0], format, files)
    with _room(roots[1], overwrite) as root, workers_of(executor, jobs, roots=[found.root]) as who:
        titled = gather(found, pattern, who)
        if not titled:
            raise ArchiveError(
                f"{source} has nothing to import: no file of it is {_wanted(found)}",
                hint="say what it is with --format, and which files with --files",
            )
        tasks = list(planned(titled, root, found.format, model))
        _check_room(root, sum(value.nbytes for value, _ in titled))
        facts = {"mode": "import", "tool": found.format, "source": str(source),
                 "versions": {"dumpcmp": __version__}, "numbers": found.numbers}  # fmt: skip
        ranks = sorted({task.place.rank for task in tasks})
        world_size = tasks[0].place.world_size
        run = StraightRun.begin(root, world_size, dict.fromkeys(ranks, facts), overwrite=overwrite)
        with _undone_on_error(root, world_size, ranks):
            told = dict.fromkeys(ranks, PartTold())
            for number, (task, done) in enumerate(
                zip(tasks, run_each(write_part, tasks, who), strict=True), 1
            ):
                told[task.place.rank] += done
                if progress is not None:
                    progress(number, len(tasks))
            run.end(told)
    return _imported(roots[1], found, titled, sum(told.values(), PartTold()))


def _imported(path: Path, found: SourceFiles, titled: Sequence[Titled], told: PartTold) -> Imported:
    problems = tuple(f"{t.op} {t.slot}: {value.problem}" for value, t in titled if value.problem)
    ranks, steps = {t.rank for _, t in titled}, {t.step for _, t in titled}
    return Imported(
        path, found.format, told.num_records, told.nbytes, len(ranks), len(steps), found.left_out,
        problems,
    )  # fmt: skip


def _wanted(found: SourceFiles) -> str:
    return "one that is known" if found.format == "auto" else f"of format {found.format}"


@contextmanager
def _room(path: Path, overwrite: bool) -> Iterator[Path]:
    """Where to write: at `path`, or where that is in a store, here, to be uploaded at the end."""
    if not isinstance(path, RemotePath):
        yield path
        return
    path.store.check_writable()
    path.refresh()
    old = [directory.name for directory in rank_directories(path)]
    for name in () if overwrite else old:
        check_free(path, name, overwrite=False)  # before anything is read
    with spool_room() as folder:
        yield folder
        for name in old:
            check_free(path, name, overwrite=overwrite)
        done = upload(folder, path)
        if not done.is_whole:
            raise ArchiveError(f"{path} is not whole: {'; '.join(done.left[:3])}")


@contextmanager
def _undone_on_error(root: Path, world_size: int, ranks: Sequence[int]) -> Iterator[None]:
    """Leave nothing of an import that did not come to its end."""
    try:
        yield
    except BaseException:
        for rank in ranks:
            shutil.rmtree(RankDirectory(root, rank, world_size).path, ignore_errors=True)
        raise


def _check_room(root: Path, nbytes: int) -> None:
    standing = next(each for each in (root, *root.absolute().parents) if each.exists())
    free = shutil.disk_usage(standing).free
    if nbytes > free:
        raise ArchiveError(
            f"{root} would take {readable(nbytes)}, and {readable(free)} are free there",
            hint="choose a disk with room, or take fewer files with --files",
        )


def planned(titled: Sequence[Titled], root: Path, format: str, model: str) -> Iterator[ImportTask]:
    """The parts of the archive, each of bounded bytes."""
    steps: dict[tuple[int, str, int], list[Titled]] = {}
    for value, title in titled:
        steps.setdefault((title.rank, title.model or model, title.step), []).append((value, title))
    world_size = 1 + max(rank for rank, _, _ in steps)
    for (rank, name, step), values in sorted(steps.items()):
        calls, records = _recorded(values, name)
        fused = [site for site, call in calls.items() if call.kernel]  # which may have no values
        for number, portion in enumerate(_cut(records)):
            at = PartPlace(root, rank, world_size, name, step, number)
            sites: dict[tuple[str, int], None]
            sites = dict.fromkeys((record.key.op, record.key.call) for _, record in portion)
            sites |= dict.fromkeys(fused[: 0 if number else None])
            yield ImportTask(at, format, tuple(calls[site] for site in sites), portion)


Sites = Mapping[tuple[str, int], Call]


def _recorded(values: Sequence[Titled], model: str) -> tuple[Sites, list[tuple[Foreign, Record]]]:
    """The calls and Records of one step on one rank, in their order."""
    calls: dict[tuple[str, int], Call] = {}
    seen: dict[Key, Foreign] = {}
    records = []
    ordered = sorted(enumerate(values), key=lambda item: (_order(*item), item[0]))
    for _, (value, title) in ordered:
        key = Key(model, title.step, title.op, title.call or 0, title.slot)
        if key in seen:
            raise _called_twice(key, seen[key], value)
        seen[key] = value
        site = (key.op, key.call)
        for op in title.inside or (title.op,):
            if (op, key.call) not in calls:
                at = replace(key, op=Op(op))
                calls[op, key.call] = _call(at, title, len(calls))
        records.append((value, _record(key, calls[site].order, value, title)))
    return calls, records


def _order(at: int, titled: Titled) -> int:
    return at if titled[1].order is None else titled[1].order


def _call(key: Key, title: Title, order: int) -> Call:
    return Call(
        key.model, key.step, Op(key.op), key.call, order, title.target, phase=title.phase,
        kernel=title.kernel,
    )  # fmt: skip


def _record(key: Key, order: int, value: Foreign, title: Title) -> Record:
    stride = tuple(math.prod(value.shape[i + 1 :]) for i in range(len(value.shape)))
    return Record(
        key, order, value.dtype, value.shape, stride, rank=title.rank, layout=title.layout,
        problem=value.problem,
    )  # fmt: skip


def _called_twice(key: Key, one: Foreign, other: Foreign) -> ArchiveError:
    told = [f"{value.name!r} of {value.file}" if value.name else str(value.file)
            for value in (one, other)]  # fmt: skip
    return ArchiveError(
        f"two values are called {key}: {told[0]} and {told[1]}",
        hint="tell them apart with --pattern: groups step, rank, op, slot and call",
    )


def _cut(records: Sequence[tuple[Foreign, Record]]) -> Iterator[tuple[tuple[Foreign, Record], ...]]:
    portion: list[tuple[Foreign, Record]] = []
    nbytes = 0
    for value, record in records:
        if portion and (nbytes + value.nbytes > MOST_NBYTES or len(portion) >= MOST_VALUES):
            yield tuple(portion)
            portion, nbytes = [], 0
        portion.append((value, record))
        nbytes += value.nbytes
    if portion:
        yield tuple(portion)


def write_part(task: ImportTask) -> PartTold:
    """Read the values of one part where they lie, and write it where the others are written.

    A worker that does not see what the import has begun there would write for itself alone.
    """
    if not (task.place.directory.path / RUN_FILE).is_file():
        raise EngineError(
            f"{socket.gethostname()} does not see {task.place.directory.path}, which was just made",
            hint="import to a path that all workers share",
        )
    with straight(task.place, sync=True) as part, _Open(task.format) as files:
        for call in task.calls:
            part.call(call)
        for value, record in task.values:
            part.put(record, None if value.problem else files.source(value))
    return part.told


class _Open(ExitStack):
    """The file that is being read; the last one is closed when another is asked for."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self._format = format
        self._file: ForeignFile | None = None

    def source(self, value: Foreign) -> Source:
        """The elements of `value`, which must be what they were when its file was listed."""
        if self._file is None or self._file.path != value.file:
            self.close()
            self._file = self.enter_context(opened(value.file, self._format))
        if not self._file.has(value):
            raise ForeignFileError(
                f"{value.file}: {value.name or 'it'} is not what it was a moment ago",
                hint="import it when nobody writes to it",
            )
        return self._file.source(value)
