"""How much of each value a dump keeps: whole tensors, Summaries, or tensors compacted beside it."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from dumpcmp.align.mesh.regions import portion_of
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import CaptureWarning, SelectionError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Record, Sink, Source
from dumpcmp.summary.gpu.device import Packed, Summariser
from dumpcmp.summary.gpu.memory import DeviceRow
from dumpcmp.summary.packing import load_reduction
from dumpcmp.summary.sketch import SIZES
from dumpcmp.summary.summary import Recipe

PART_NBYTES = 1 << 30
MOST_HASHES, MOST_SEGMENTS = 8, 256
_STALLED_SECONDS = 5.0
_POLL_SECONDS = 0.05


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

    def __post_init__(self) -> None:
        if self.keep not in ("full", "summary"):
            raise SelectionError(f"--keep {self.keep!r} is not known", hint="valid: full, summary")
        if self.sketch and self.sketch not in SIZES:
            raise SelectionError(
                f"--sketch {self.sketch} is not possible",
                hint=f"the sizes are 0, {', '.join(map(str, SIZES))}",
            )
        for option, value, low, high in (
            ("hashes", self.hashes, 1, MOST_HASHES),
            ("segments", self.segments, 0, MOST_SEGMENTS),
        ):
            if not low <= value <= high:
                raise SelectionError(
                    f"--{option} {value} is not possible", hint=f"give {low} to {high}"
                )
        if not self.sketch and (self.hashes > 1 or self.segments):
            raise SelectionError(
                "--hashes and --segments are of the sketch, and --sketch 0 keeps none",
                hint="leave --sketch 0 out, or the others",
            )
        if self.keep == "summary" and self.compacts:
            raise SelectionError(
                "--keep summary leaves nothing to compact", hint="leave --compact out"
            )

    @property
    def compacts(self) -> bool:
        return self.compact or self.disk_budget is not None

    @property
    def part_nbytes(self) -> int:
        """How large a part may grow: small beside the budget, so that some can be compacted."""
        if self.disk_budget is None:
            return PART_NBYTES
        return min(PART_NBYTES, max(1 << 20, self.disk_budget // 16))

    def condenser(self) -> Condenser | None:
        """What takes Summaries at capture, where they are all that is kept."""
        return Condenser(self) if self.keep == "summary" else None

    def words(self) -> dict[str, object]:
        """What run.json says of it."""
        told = asdict(self)
        usual = {"hashes": 1, "segments": 0}
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


class Condenser:
    """Takes the Summary of a value where it lives, unless the value is to stay whole."""

    def __init__(self, retention: Retention) -> None:
        reduction = load_reduction(retention.reduce) if retention.reduce else None
        self._globs = retention.keep_full
        recipe = Recipe(retention.sketch, 0, retention.hashes, retention.segments)
        self._summariser = Summariser(recipe, reduction)

    def __call__(self, key: Key, tensor: Tensor, layout: str) -> Packed | DeviceRow | None:
        """The Summary of `tensor`; None where the tensor itself is kept."""
        if self._globs and any(fnmatch.fnmatchcase(key.op, glob) for glob in self._globs):
            return None
        portion = portion_of(layout, tuple(tensor.shape)) if layout else None
        return self._summariser(tensor, portion)


@dataclass(slots=True)
class Compactor:
    """The process that compacts beside a dump, and what it said at its end."""

    child: subprocess.Popen[str] | None = None
    said: str = ""

    @property
    def lives(self) -> bool:
        return self.child is not None and self.child.poll() is None


@contextmanager
def compactor_beside(path: Path, retention: Retention, rank: int) -> Iterator[Compactor]:
    """Have a compactor beside the block on the first rank; at the end, wait for its last part."""
    if not retention.compacts or rank:
        yield Compactor()
        return
    child = subprocess.Popen(
        retention.command(path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    beside = Compactor(child)
    try:
        yield beside
    except KeyboardInterrupt:
        child.terminate()
        raise
    finally:
        said, trouble = child.communicate()
        beside.said = said.strip()
        if child.returncode and trouble:
            warnings.warn(f"the compactor: {trouble.strip()}", CaptureWarning, stacklevel=2)


@dataclass(slots=True)
class Budgeted:
    """A Sink that waits while the archive is larger than its budget and a compactor is at it."""

    sink: ArchiveWriter
    path: Path
    budget: int
    compactor: Compactor
    _since: int = 0
    _told: bool = field(default=False, repr=False)

    def call(self, call: Call) -> None:
        self.sink.call(call)

    def text(self, model: str, name: str, text: str) -> None:
        self.sink.text(model, name, text)

    def finish_step(self, model: str, step: int) -> None:
        self.sink.finish_step(model, step)

    def put(self, record: Record, source: Source | None) -> None:
        self._since += source.nbytes if source is not None else 0
        if self._since > self.budget // 64:
            self._since = 0
            self._make_room()
        self.sink.put(record, source)

    def _make_room(self) -> None:
        """Wait until the archive is within its budget, or until waiting changes nothing."""
        size, changed = self._nbytes(), time.monotonic()
        while size > self.budget and self.compactor.lives:
            time.sleep(_POLL_SECONDS)
            now = self._nbytes()
            changed = time.monotonic() if now != size else changed
            size = now
            if time.monotonic() - changed > _STALLED_SECONDS:
                self._tell()
                return

    def _nbytes(self) -> int:
        found = self.path.glob("worldsize*/*/*/part-*.h5")
        return sum(part.stat().st_size for part in found if part.exists())

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            warnings.warn(
                f"the archive cannot be kept under {self.budget} bytes: all finished parts are "
                "compacted",
                CaptureWarning,
                stacklevel=2,
            )


def within_budget(sink: ArchiveWriter, retention: Retention, compactor: Compactor) -> Sink:
    """`sink`, made to wait for the compactor where there is a disk budget."""
    if retention.disk_budget is None:
        return sink
    return Budgeted(sink, sink.path.parent, retention.disk_budget, compactor)
