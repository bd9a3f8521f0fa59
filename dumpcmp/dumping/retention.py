"""How much of each value a dump keeps: whole tensors, Summaries, or tensors compacted beside it."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from dumpcmp.align.mesh.regions import portion_of
from dumpcmp.archive.locks import COMPACTING
from dumpcmp.archive.schema import PART_FILE
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import SelectionError, warn_of
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.record import Record, Sink, Source
from dumpcmp.nouns.value import Portion
from dumpcmp.summary.gpu.device import Summariser
from dumpcmp.summary.gpu.weigher import Weigher
from dumpcmp.summary.packing import load_reduction
from dumpcmp.summary.sampler import Sampler
from dumpcmp.summary.sketch import SIZES
from dumpcmp.summary.summary import Recipe
from dumpcmp.taps.recording.values import Condense, Condensed

PART_NBYTES = 1 << 30
MOST_HASHES, MOST_SEGMENTS = 8, 256
_IDLE_ROUNDS = 2  # of the compactor: one may have begun before there was something to do
_POLL_SECONDS = 0.05
_PART = re.compile(PART_FILE)


@dataclass(frozen=True, slots=True)
class Retention:
    """What a dump keeps. A disk budget is kept by compacting the oldest parts first."""

    keep: str = "full"
    compact: bool = False
    keep_full: tuple[str, ...] = ()  # globs over ops that stay whole
    sketch: int = 512
    reduce: str | None = None  # pkg.mod:function
    disk_budget: int | None = None
    hashes: int = 1  # sketches a tensor
    segments: int = 0  # ranges of tokens with sketches of their own
    buffer: int | None = None  # bytes of memory that may hold what the disk has not taken yet
    graph_budget: int | None = None  # bytes of a device for what CUDA graphs compute
    checksum: bool = False  # of each Summary, which tells on a GPU too whether values are the same
    spool_limit: int | None = None  # bytes that parts take here which are in a store already
    sample_rows: int | None = None  # rows that are kept of a value that has more

    def __post_init__(self) -> None:
        if self.keep not in ("full", "summary"):
            raise SelectionError(f"--keep {self.keep!r} is not known", hint="valid: full, summary")
        if self.sketch and self.sketch not in SIZES:
            hint = f"the sizes are 0, {', '.join(map(str, SIZES))}"
            raise SelectionError(f"--sketch {self.sketch} is not possible", hint=hint)
        for option, value, low, high in (
            ("hashes", self.hashes, 1, MOST_HASHES),
            ("segments", self.segments, 0, MOST_SEGMENTS),
        ):
            if not low <= value <= high:
                hint = f"give {low} to {high}"
                raise SelectionError(f"--{option} {value} is not possible", hint=hint)
        if not self.sketch and (self.hashes > 1 or self.segments):
            raise SelectionError(
                "--hashes and --segments are of the sketch, and --sketch 0 keeps none",
                hint="leave --sketch 0 out, or the others",
            )
        if self.checksum and self.keep != "summary":
            hint = "give --keep summary too, or leave it out: whole tensors have digests"
            raise SelectionError("--checksum is of --keep summary", hint=hint)
        if self.sample_rows is not None and self.sample_rows < 1:
            hint = "give 1 or more"
            raise SelectionError(f"--sample-rows {self.sample_rows} keeps nothing", hint=hint)
        if self.sample_rows is not None and self.keep == "summary":
            hint = "leave one of them out"
            raise SelectionError("--sample-rows and --keep summary exclude each other", hint=hint)
        if self.keep == "summary" and self.compacts:
            hint = "leave --compact out"
            raise SelectionError("--keep summary leaves nothing to compact", hint=hint)

    @property
    def compacts(self) -> bool:
        return self.compact or self.disk_budget is not None

    @property
    def part_nbytes(self) -> int:
        """How large a part may grow: small beside the budget, so that some can be compacted."""
        if self.disk_budget is None:
            return PART_NBYTES
        return min(PART_NBYTES, max(1 << 20, self.disk_budget // 16))

    def condensers(self, compactor: Compactor) -> tuple[Condense | None, Condense | None]:
        """What takes Summaries or rows of values where they live, if those are all that is kept.

        The second is for what a CUDA graph computes, and gives nothing of what it cannot take in.
        A value of which the user's function gives no numbers stays whole; `compactor` is told.
        """
        if self.sample_rows is not None:
            sampling = self._sampling(Sampler(self.sample_rows))
            return sampling, sampling
        if self.keep != "summary":
            return None, None
        reduction = load_reduction(self.reduce) if self.reduce else None
        recipe = Recipe(self.sketch, 0, self.hashes, self.segments)
        summarise: Summariser | Weigher = Summariser(recipe, reduction)
        if self.checksum:
            summarise = Weigher(recipe, reduction, alike=True)

        def condense(key: Key, tensor: Tensor, layout: str) -> Condensed | None:
            if self.keep_full and self._stays_whole(key):
                return None
            condensed = summarise(tensor, _portion(tensor, layout))
            if reduction is None or condensed is None:  # nothing more is asked of most values
                return condensed
            if problem := dict(condensed.stored.attributes).get("reduce_problem"):
                compactor.tell(f"{key} stays whole, --reduce gave no numbers: {problem}")
                return None
            return condensed

        def taped(key: Key, tensor: Tensor, layout: str) -> Condensed | None:
            is_whole = bool(layout) or self._stays_whole(key)
            return None if is_whole else summarise.taped(tensor)

        return condense, taped

    def _sampling(self, sampler: Sampler) -> Condense:
        """What takes rows of values. The state of a generator is worth nothing but whole."""

        def condense(key: Key, tensor: Tensor, layout: str) -> Condensed | None:  # noqa: ARG001
            is_whole = key.slot.is_generator or self._stays_whole(key)
            return None if is_whole else sampler(tensor)

        return condense

    def _stays_whole(self, key: Key) -> bool:
        return any(fnmatch.fnmatchcase(key.op, glob) for glob in self.keep_full)

    def weigher(self) -> Condense:
        """What takes Summaries of parameters and buffers, where more of them is not kept."""
        weigh = Weigher(Recipe(self.sketch, 0, self.hashes, self.segments))

        def condense(key: Key, tensor: Tensor, layout: str) -> Condensed | None:
            return None if self._stays_whole(key) else weigh(tensor, _portion(tensor, layout))

        return condense

    def words(self) -> dict[str, object]:
        """What run.json says of it."""
        told = asdict(self)
        usual = {"hashes": 1, "segments": 0, "checksum": False}
        return {n: told[n] for n in told if told[n] is not None and told[n] != usual.get(n)}

    def command(self, path: Path) -> list[str]:
        """The compactor, as a program to run beside the dump into `path`."""
        words = [sys.executable, "-m", "dumpcmp", "compact", str(path), "--watch"]
        words += [f"--{name}={getattr(self, name)}" for name in ("sketch", "hashes", "segments")]
        words += [f"--keep-full={glob}" for glob in self.keep_full]
        words += [f"--reduce={self.reduce}"] if self.reduce else []
        if self.disk_budget is not None and not self.compact:
            words.append(f"--disk-budget={self.disk_budget * 3 // 4}")
        return words


def _portion(tensor: Tensor, layout: str) -> Portion | None:
    return portion_of(layout, tuple(tensor.shape)) if layout else None


@dataclass(slots=True)
class Compactor:
    """The process that compacts beside a dump, and what it said at its end."""

    child: subprocess.Popen[str] | None = None
    said: str = ""
    trouble: str = ""  # why what it was to do is not done

    @property
    def lives(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def finish(self, said: str, trouble: str) -> None:
        """Take what it said at its end, on both ways out."""
        self.said = said.strip()
        if self.child is not None and self.child.returncode:
            self.trouble = trouble.strip() or f"it ended with {self.child.returncode}"
            warn_of(f"the compactor: {self.trouble}", stacklevel=3)

    def tell(self, trouble: str) -> None:
        """Remember the first `trouble`, and warn of it at once."""
        if not self.trouble:
            self.trouble = trouble
            warn_of(trouble, stacklevel=3)


@contextmanager
def compactor_beside(path: Path, retention: Retention, rank: int) -> Iterator[Compactor]:
    """Have a compactor beside the block on the first rank; at the end, wait for its last part."""
    if retention.reduce:
        load_reduction(retention.reduce)  # or say at once that there is no such function
    if not retention.compacts or rank:
        yield Compactor()
        return
    child = subprocess.Popen(
        retention.command(path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    beside, owner = Compactor(child), os.getpid()
    try:
        yield beside
    except KeyboardInterrupt:
        child.terminate()
        raise
    finally:
        if os.getpid() == owner:  # no child that the program forked waits for it
            beside.finish(*child.communicate())
            budget = retention.disk_budget
            if budget is not None and (nbytes := sum(_sizes_in(path).values())) > budget:
                size, most = readable(nbytes), readable(budget)
                beside.tell(f"the archive has {size}, above its budget of {most}: all is compacted")


def _sizes_in(path: Path) -> dict[Path, int]:
    """Bytes of each part of the archive at `path`; ranks may rename directories meanwhile."""
    found: dict[Path, int] = {}
    for room, rooms, names in os.walk(path):
        rooms[:] = [name for name in rooms if not name.startswith(".")]
        for name in names:
            if _PART.fullmatch(name):
                with suppress(FileNotFoundError):
                    found[Path(room, name)] = Path(room, name).stat().st_size
    return found


class Budgeted:
    """A Sink that waits while the archive is larger than its budget and a compactor is at it."""

    def __init__(self, sink: ArchiveWriter, budget: int, compactor: Compactor) -> None:
        self.call, self.text, self.finish_step = sink.call, sink.text, sink.finish_step
        self.settle, self.fail = sink.settle, sink.fail
        self.sink, self.budget, self.compactor = sink, budget, compactor
        self.path = sink.path.parent
        self._since = 0  # bytes that were taken since it looked
        self._on_the_way = 0  # that may not be in the parts yet
        self._stalled: frozenset[Path] = frozenset()  # the parts when waiting was of no use

    def put(self, record: Record, source: Source | None) -> None:
        coming = source.nbytes if source is not None else 0
        if self._since + coming > self.budget // 64:
            self._on_the_way += self._since
            self._since = 0
            self._make_room(coming)
        self._since += coming
        self.sink.put(record, source)

    def _make_room(self, coming: int) -> None:
        """Wait until so many bytes fit into the budget, or until waiting changes nothing.

        Once it did not, only another finished part gives the compactor something to do. A compactor
        that is stopped, or has no processor, is waited for: nothing is written meanwhile.
        """
        sizes = _sizes_in(self.path)
        if self._stalled and sizes.keys() == self._stalled:
            return
        if sum(sizes.values()) + self._on_the_way + coming > self.budget:
            self.sink.settle()
            self._on_the_way, sizes = 0, _sizes_in(self.path)
        rounds = {self._round()}
        while sum(sizes.values()) + coming > self.budget and self.compactor.lives:
            time.sleep(_POLL_SECONDS)
            before, sizes = sizes, _sizes_in(self.path)
            rounds = {self._round()} if sizes != before else rounds | {self._round()}
            if len(rounds) > _IDLE_ROUNDS:
                self._stalled = frozenset(sizes)
                self._tell()
                return
        self._stalled = frozenset()

    def _round(self) -> int:
        """Which round of the compactor ended last; 0 before the first."""
        lock = self.path / COMPACTING
        return lock.stat().st_mtime_ns if lock.exists() else 0

    def _tell(self) -> None:
        why = "all finished parts are compacted"
        self.compactor.tell(f"the archive cannot be kept under {self.budget} bytes: {why}")


def within_budget(sink: ArchiveWriter, retention: Retention, compactor: Compactor) -> Sink:
    """`sink`, made to wait for the compactor where there is a disk budget."""
    if retention.disk_budget is None:
        return sink
    return Budgeted(sink, retention.disk_budget, compactor)
