"""Use case: replace an archive's tensors by Summaries, at once or beside the run that writes it."""

from __future__ import annotations

import fnmatch
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dumpcmp.align.mesh.regions import portion_of
from dumpcmp.archive.clearing import clear_shared
from dumpcmp.archive.ending import has_ended
from dumpcmp.archive.locks import COMPACTING
from dumpcmp.archive.paths import clear_rings, no_archive, rank_directories
from dumpcmp.archive.rewrite import (
    Condensing,
    Rewritten,
    alone_compacting,
    is_sealed,
    parts_of,
    rewrite,
)
from dumpcmp.archive.stores.urls import RemotePath, here, place
from dumpcmp.archive.upload import pieces_of, put_checked
from dumpcmp.engines.engine import Workers, is_elsewhere, whole_path, workers_of
from dumpcmp.execute import num_workers, run_each
from dumpcmp.nouns.errors import ArchiveError, CheckError, DumpcmpError
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.record import Record, Stored
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import Value
from dumpcmp.summary.packing import Reduction, load_reduction, pack, reduced
from dumpcmp.summary.sketch import Floats
from dumpcmp.summary.summary import DEFAULT, RAW_LIMIT, Recipe, summarise

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 600.0  # how long a watcher waits for a run to begin


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compacting an archive came to, up to now or in all."""

    path: Path
    total: Rewritten = field(default_factory=Rewritten)
    problems: tuple[str, ...] = ()  # parts that stay as they are, and why

    def after(self, done: Rewritten | str) -> Compacted:
        """The same with one part more."""
        if isinstance(done, str):
            return replace(self, problems=(*self.problems, done))
        return replace(self, total=self.total + done)

    def __str__(self) -> str:
        done = self.total
        if not done.num_parts:
            return f"{self.path}: nothing to compact"
        ratio = done.nbytes_before / max(1, done.nbytes_after)
        values, parts = counted(done.num_values, "value"), counted(done.num_parts, "part")
        return (
            f"{self.path}: {values} in {parts}, "
            f"{readable(done.nbytes_before)} -> {readable(done.nbytes_after)} ({ratio:.0f} times "
            f"smaller), {readable(done.nbytes_freed)} freed"
        )


@dataclass(frozen=True, slots=True)
class Summarising:
    """Which tensors of an archive give way to Summaries, and how these are taken."""

    recipe: Recipe = DEFAULT
    keep_full: tuple[str, ...] = ()  # globs over ops that stay whole
    reduction: Reduction | None = None

    def selects(self, record: Record) -> bool:
        """Whether the elements of `record` give way to a Summary."""
        if math.prod(record.shape) <= RAW_LIMIT:
            return False
        return not any(fnmatch.fnmatchcase(record.key.op, glob) for glob in self.keep_full)

    def condense(self, record: Record, value: Value) -> tuple[Stored, Floats]:
        """What stands for the elements of `record`."""
        portion = portion_of(record.layout, record.shape)
        summary = summarise(value, self.recipe, portion, record.digest)
        summary = reduced(summary, value, self.reduction)
        if summary.reduce_problem:  # its part stays whole: the elements are all there is
            raise CheckError(f"{record.key}: --reduce gave no numbers: {summary.reduce_problem}")
        return pack(summary)


def compact(
    path: str | Path,
    *,
    watch: bool = False,
    sketch: int = 512,
    hashes: int = 1,
    segments: int = 0,
    seed: int = 0,
    keep_full: Sequence[str] = (),
    min_max_only: bool = False,
    reduce: str | Reduction | None = None,
    disk_budget: int | None = None,
    jobs: int = 1,
    executor: Workers | None = None,
    progress: Callable[[Compacted], None] | None = None,
) -> Compacted:
    """Replace the tensors of the archive at `path` by Summaries, part by part.

    Only finished parts are touched. Each is replaced whole, after its draft was checked, so that
    a crash leaves it either as it was or compacted; so it is in a store, from which one part at a
    time is copied here, and replaced by what it became after that was read back. With `watch` the
    work goes on until the run that writes the archive has ended. `disk_budget` compacts the oldest
    parts only, until the archive is no larger than so many bytes. `jobs` processes, or the workers
    of an `executor` as for `compare`, share the parts.
    """
    reduction = load_reduction(reduce) if isinstance(reduce, str) else reduce
    recipe = Recipe(0 if min_max_only else sketch, seed, hashes, segments)
    summarising = Summarising(recipe, tuple(keep_full), reduction)
    root = place(whole_path(path) if is_elsewhere(executor) else path)
    if watch:
        here(root, "compacted while it is written")
    clear_rings()
    if watch:
        _await_run(root)
    if not rank_directories(root):
        raise no_archive(root)
    work, so_far = partial(compact_part, summarising), Compacted(root)
    settled: dict[Path, int] = {}  # part -> its size when all was done
    with _alone(root), workers_of(executor, jobs, roots=[root]) as workers:
        ahead = 2 * num_workers(workers) - 1
        ahead = 1 if disk_budget else ahead  # under a budget, each part may be the last
        for _ in _rounds(root, watch):
            parts = [part for part in parts_of(root) if settled.get(part) != _size(part)]
            results = run_each(work, _within(root, disk_budget, parts), workers, ahead)
            for part, done in zip(parts, results, strict=False):
                if done is None:
                    continue
                settled[part], so_far = _size(part), so_far.after(done)
                if progress is not None and isinstance(done, Rewritten) and done.num_parts:
                    progress(so_far)
            if watch:
                (root / COMPACTING).touch()  # a round has ended: who waits for room may look
        if freed := clear_shared(root):
            so_far = so_far.after(Rewritten(nbytes_before=freed))
    if disk_budget is not None and not watch and nbytes_of(root) > disk_budget:
        return so_far.after(_above(root, disk_budget))
    return so_far


def _above(root: Path, budget: int) -> str:
    size = readable(nbytes_of(root))
    return f"{root} has {size} after all was compacted that can be, above {readable(budget)}"


def compact_part(summarising: Summarising, part: Path) -> Rewritten | str | None:
    """Compact one part; a sentence where it must stay as it is, None while it is being written."""
    try:
        if isinstance(part, RemotePath):
            return _compact_there(summarising, part)
        return _compact_here(summarising, part)
    except (DumpcmpError, OSError) as error:
        return str(error)


def _compact_here(
    summarising: Summarising, part: Path, home: Path | None = None
) -> Rewritten | None:
    if not is_sealed(part):
        return None
    return rewrite(part, Condensing(summarising.selects, summarising.condense), home)


def _compact_there(summarising: Summarising, part: RemotePath) -> Rewritten | str | None:
    """Compact a part of a store: a copy of it here, and its draft there, which takes its place."""
    before = part.store.asked(part.key)
    with tempfile.TemporaryDirectory() as room:
        copy = Path(room) / part.name
        with copy.open("wb") as file:
            for piece in pieces_of(part, before.nbytes):
                file.write(piece)
        done = _compact_here(summarising, copy, part)
        if done is None or not done.num_parts:
            return done
        if part.store.asked(part.key) != before:
            return f"{part} became another while it was compacted: it stays as it is"
        draft = part.with_name(f".draft-{part.name}")
        try:
            put_checked(copy, draft)
            part.store.copy(draft.key, part.key)
        finally:
            with suppress(ArchiveError, OSError):  # an audit tells of a draft that is left
                part.store.remove(draft.key)
    return done


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold an archive against other compactors; a store has no locks, and each part is replaced."""
    if isinstance(root, RemotePath):
        root.refresh()
        yield
        root.refresh()  # parts have become smaller
        return
    with alone_compacting(root):
        yield


def _within(root: Path, budget: int | None, parts: list[Path]) -> Iterator[Path]:
    """The parts to compact, oldest first: all, or one by one while the budget is exceeded."""
    for part in parts:
        if budget is not None and nbytes_of(root) <= budget:
            return
        yield part


def _await_run(root: Path) -> None:
    """Wait until a run has begun to write at `root`, for a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not rank_directories(root) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _rounds(root: Path, watch: bool) -> Iterator[None]:
    """Once, or again and again until the run has ended, and then once more."""
    while watch and not has_ended(root):
        yield
        time.sleep(POLL_SECONDS)
    yield


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def nbytes_of(root: Path) -> int:
    """Bytes of all parts of the archive at `root`."""
    return sum(map(_size, root.glob("worldsize*/*/*/part-*.h5")))
