"""Where things lie: names as files and groups, rank directories, run.json, a dead writer's ring."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any
from urllib.parse import unquote_to_bytes

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import schema
from dumpcmp.archive.locks import COMPACTING, WRITING, is_held
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.budgets import RUN, TEXT, Spending
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import write_whole

LONGEST = 150  # bytes of an escaped name; a longer one ends in a digest of itself instead
SHARED_MEMORY = Path("/dev/shm")
_LONGEST_PLACE = 4096  # bytes
MOVED = ".moved"  # in a rank's directory: parts of it were removed, and lie at the URL that it has
RING_PREFIX = "dumpcmp-"  # of a ring in shared memory
RING_FILE = ".ring"  # of one in the rank's directory
RING_MAGIC = b"dumpcmp ring 1\0\0"
HEADER_NBYTES = 4096
RING_HEADER = Struct("<16sQQQ")  # magic, capacity, place and sequence of the oldest record
RING_OWNER, RING_OWNER_AT = Struct("<QQI"), 64  # device, number and bytes of the path that follows
_PATH_AT = RING_OWNER_AT + RING_OWNER.size
_LONGEST_PATH = HEADER_NBYTES - _PATH_AT
QUIET_SECONDS = 3600

_RESERVED = frozenset((schema.INDEX_GROUP, *(f"_{name}" for name in schema.CALL_ATTRS)))
_UNSAFE_LINK = re.compile(r"[%#/\x00-\x1f\x7f\ud800-\udfff]")
_UNSAFE_FILE = re.compile(r"[^A-Za-z0-9_.+=,@ -]")


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _escape(name: str, unsafe: re.Pattern[str]) -> str:
    """`name` with unsafe characters as %XX; the empty name is a lone %."""
    if not name:
        return "%"
    safe = unsafe.sub(_percent, name)
    if safe in _RESERVED or safe.startswith((".", " ")):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    encoded = safe.encode()
    if len(encoded) <= LONGEST:
        return safe
    digest = xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
    return f"{encoded[:LONGEST].decode(errors='ignore')}~{digest}"


@lru_cache(maxsize=65_536)
def link_name(name: str) -> str:
    """The name of an HDF5 link for one component of an op, or for a slot."""
    return _escape(name, _UNSAFE_LINK)


def group_path(op: str, call: int) -> tuple[str, ...]:
    """The groups from a part's root to the call of `op`: ``("layers.0.attn", "linear#0")``."""
    outer, last = op_path(op)
    return (*outer, f"{last}#{call}")


def dataset_path(op: str, call: int, slot: str) -> str:
    """Where a part has the dataset of a value: ``layers.0.attn/linear#0/output.0``."""
    return "/".join((*group_path(op, call), link_name(slot)))


@lru_cache(maxsize=16_384)
def op_path(op: str) -> tuple[tuple[str, ...], str]:
    """The groups above those of the calls of `op`, and what the latter are called, unnumbered."""
    *outer, last = op.split("/")
    return tuple(map(link_name, outer)), link_name(last)


def file_name(name: str) -> str:
    """The name of a directory or file that stands for `name`."""
    return _escape(name, _UNSAFE_FILE)


def unescaped(name: str) -> str:
    """The name that was escaped to `name`; one that was too long stays as it is."""
    if name == "%":
        return ""
    return unquote_to_bytes(name.encode()).decode("utf-8", "surrogatepass")


def name_of_file(escaped: str) -> str | None:
    """The name that `file_name` escaped, or None where it was too long to be kept."""
    return None if len(escaped.encode()) > LONGEST else unescaped(escaped)


def listed(numbers: Iterable[int], most: int = 10) -> str:
    """The first `most` of `numbers` in words: ``1, 2, 5 and more``."""
    first = list(islice(numbers, most + 1))
    return ", ".join(map(str, first[:most])) + (" and more" if len(first) > most else "")


def gaps(numbers: Iterable[int], start: int = 0) -> Iterator[int]:
    """The numbers from `start` to the largest of `numbers` that are not among them, lazily."""
    for number in sorted(numbers):
        yield from range(start, number)
        start = number + 1


def ring_claim(directory: Path) -> bytes:
    """What a ring says of the `directory` that it is of, to lie at RING_OWNER_AT."""
    told, path = directory.stat(), os.fsencode(directory.resolve())
    path = path if len(path) <= _LONGEST_PATH else b""
    return RING_OWNER.pack(told.st_dev, told.st_ino, len(path)) + path


def no_archive(path: Path) -> ArchiveError:
    """Why `path`, which has no rank's directory, is no archive."""
    hint = (
        "give the path that was given to dumpcmp dump --path; "
        "what another tool wrote: dumpcmp import PATH --path DIR"
    )
    if not isinstance(path, RemotePath) and not path.exists():
        return ArchiveError(f"{path} does not exist", hint=hint)
    if path.suffix == ".tar":
        hint = f"a program is held against a fixture by: dumpcmp golden check {path} PROGRAM"
    lacks = "worldsize*_global_rank* directory"
    if path.is_dir() and any(_named_ranks(path)):
        lacks = f"{schema.RUN_FILE} and no part of a run, but files of another kind"
    return ArchiveError(f"{path} is not an archive: it has no {lacks}", hint=hint)


def is_of_another_tool(directories: Iterable[Path]) -> bool:
    """Whether rank `directories` hold files, and none that dumpcmp writes: a torchair dump, say."""
    ours = re.compile(f"{schema.RUN_FILE}|{schema.PART_FILE}")
    found = False
    for each in directories:
        for _, _, files in os.walk(each):
            if any(map(ours.fullmatch, files)):
                return False
            found = found or bool(files)
    return found


def rank_directories(root: Path) -> dict[Path, tuple[int, int]]:
    """The rank directories in `root`, each with its world size and rank, in order of rank."""
    found = {path: rank for path, rank in _named_ranks(root) if is_own_directory(path)}
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def _named_ranks(root: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """What in `root` is called as a rank directory is: its world size and rank."""
    for path in root.iterdir() if root.is_dir() else ():
        if match := re.fullmatch(schema.RANK_DIRECTORY, path.name):
            yield path, (int(match["world_size"]), int(match["rank"]))


def is_own_directory(path: Path) -> bool:
    """Whether `path` is a directory; a link that leads out of the archive is refused."""
    if path.is_symlink():
        raise ArchiveError(
            f"{path} is a symbolic link, and nothing outside of an archive is read or written",
            hint="put what it leads to in its place",
        )
    return path.is_dir()


def own_bytes(path: Path, most: int) -> bytes | None:
    """What a file of an archive holds; None where none is there, or one that is no plain file.

    Links are not followed, pipes not waited for; one of more than `most` bytes counts as none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    told = os.fstat(descriptor)
    if not stat.S_ISREG(told.st_mode) or told.st_size > most:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def own_text(path: Path) -> str:
    """A text beside the parts, such as a graph; what is no letter in it is shown as that."""
    if isinstance(path, RemotePath):
        Spending(TEXT, path, path.stat().st_size)
        return path.read_text(errors="replace")
    content = own_bytes(path, TEXT.nbytes)
    if content is None:
        raise ArchiveError(f"{path} is no plain file of at most {TEXT.nbytes} bytes")
    return content.decode(errors="replace")


def own_files(directory: Path) -> Iterator[Path]:
    """All files below `directory`, which must be plain ones: what leads elsewhere is refused."""
    waiting = [directory]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if is_own_directory(path):
                waiting.append(path)
            else:
                yield own_file(path)


def own_file(path: Path) -> Path:
    """`path`, which must be a plain file: a link that leads elsewhere is refused, and a pipe."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ArchiveError(
            f"{path} is no plain file, and nothing outside of an archive is read",
            hint="remove it from the archive",
        )
    return path


def append_own(path: Path, text: str) -> None:
    """Add `text` to a file of an archive, which is made where there is none; links are refused."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise ArchiveError(f"cannot write to {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "a") as file:
        file.write(text)


def moved_to(directory: Path) -> str:
    """Where parts of a rank were moved; empty where they are here."""
    if isinstance(directory, RemotePath):
        return ""
    told = own_bytes(directory / MOVED, _LONGEST_PLACE)
    return "" if told is None else told.decode(errors="replace") or "another place"


def leftovers(directory: Path) -> list[Path]:
    """The drafts below `directory` that nobody finished; what lies in a draft goes with it."""
    found = {*directory.glob("**/.draft-*"), *directory.glob("**/.new-*")}
    return sorted(each for each in found if found.isdisjoint(each.parents))


def remove(leftover: Path) -> None:
    """Remove a file or directory itself, and nothing that it leads to."""
    if leftover.is_dir() and not leftover.is_symlink():
        shutil.rmtree(leftover)
    else:
        leftover.unlink()


def models_in(directory: Path) -> list[Path]:
    """The directories of models in a rank's `directory`."""
    return sorted(
        path
        for path in directory.iterdir()
        if not path.name.startswith(".") and is_own_directory(path)
    )


def now() -> str:
    """The time, as run.json has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def steps_in(directory: Path) -> dict[int, Path]:
    """The directories of steps in a model's `directory` by their number, in order."""
    found = {
        int(path.name): path
        for path in directory.iterdir()
        if re.fullmatch(schema.STEP_DIRECTORY, path.name) and is_own_directory(path)
    }
    return dict(sorted(found.items()))


def parts_in(directory: Path) -> dict[int, Path]:
    """The parts in a step's `directory` by their number."""
    names = (re.fullmatch(schema.PART_FILE, path.name) for path in directory.iterdir())
    found = {int(match["number"]): directory / match[0] for match in names if match}
    return dict(sorted(found.items()))


def shared_in(model: Path) -> dict[int, Path]:
    """The shared parts in a model's directory, by the number that its steps know them by."""
    directory = model / schema.SHARED_DIRECTORY
    held = parts_in(directory) if is_own_directory(directory) else {}
    return {schema.SHARED + number: path for number, path in held.items()}


def part_name(number: int) -> str:
    """The file name of part `number`, as another part of the step links to it."""
    if number >= schema.SHARED:
        return f"../{schema.SHARED_DIRECTORY}/part-{number - schema.SHARED:04d}.h5"
    return f"part-{number:04d}.h5"


_RUN_TYPES = {"run": dict, "num_records": int, "nbytes": int, "problem": str}


def read_run(directory: Path) -> dict[str, Any]:
    """run.json of a rank directory, or an empty dictionary where it cannot be read."""
    path = directory / schema.RUN_FILE
    try:
        told = path.lstat()
        if told.st_size > RUN.nbytes or not stat.S_ISREG(told.st_mode):
            return {}
        facts = json.loads(path.read_bytes())
        is_known = isinstance(facts, dict) and facts.get("schema") in schema.KNOWN_VERSIONS
        if is_known and facts.get("digest") not in (None, _digest_of(facts)):
            return {}
    except (OSError, ValueError, RecursionError):
        return {}
    sound = isinstance(facts, dict) and all(
        isinstance(facts[name], kind) for name, kind in _RUN_TYPES.items() if name in facts
    )
    return facts if sound else {}


def run_text(facts: Mapping[str, Any]) -> str:
    """`facts` as run.json has them, with their digest."""
    told = json.loads(json.dumps(facts, default=str))
    return json.dumps({**told, "digest": _digest_of(told)}, indent=2) + "\n"


def _digest_of(facts: Mapping[str, Any]) -> str:
    told = {name: fact for name, fact in facts.items() if name != "digest"}
    return xxh3_128_hexdigest(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())


def writer_lives(facts: dict[str, Any], directory: Path | None = None) -> bool:
    """Whether the process that writes this run still runs, as far as this machine can tell.

    It holds a lock in `directory`. Where there is none to ask for, its number tells; another
    host's writer then counts as alive until nothing has changed there for an hour. Nobody writes
    into a store: what is there was written elsewhere, and then uploaded.
    """
    if isinstance(directory, RemotePath):
        return False
    if directory is not None and (held := is_held(directory / WRITING)) is not None:
        return held
    writer = facts.get("writer")
    if not isinstance(writer, dict):
        return False
    if writer.get("host") != socket.gethostname():
        return directory is None or _changed_lately(directory)
    pid, began = writer.get("pid"), writer.get("began")
    return isinstance(pid, int) and pid > 0 and process_start(pid) == began


def _changed_lately(directory: Path) -> bool:
    changes = [path.stat().st_mtime for path in directory.rglob("*") if path.is_file()]
    return time.time() - max(changes, default=0.0) < QUIET_SECONDS


def process_start(pid: int) -> str:
    """When process `pid` began, in the system's ticks: tells it from a later one of its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_without_proc(pid)
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _alive_without_proc(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"


def ring_left_by(directory: Path) -> Path | None:
    """The ring of a writer that is no more, where it can still be found."""
    facts = read_run(directory)
    writer = facts.get("writer")
    if isinstance(directory, RemotePath) or not isinstance(writer, dict):
        return None
    if writer_lives(facts, directory):
        return None
    name = str(writer.get("ring"))
    if name == RING_FILE:
        path = directory / name
        return path if path.is_file() and not path.is_symlink() else None
    if "/" in name or not name.startswith(RING_PREFIX):
        return None
    here = directory.stat()
    owner = ring_owner(SHARED_MEMORY / name)
    return SHARED_MEMORY / name if owner and owner[:2] == (here.st_dev, here.st_ino) else None


def ring_owner(path: Path) -> tuple[int, int, str] | None:
    """Device, number and path of the directory that a ring in shared memory is of.

    None for what is no ring, is another user's, or is in use: nothing of that is ours to touch.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode) or told.st_uid != os.getuid() or is_held(path):
            return None
        head = os.pread(descriptor, HEADER_NBYTES, 0)
        if head[:16] != RING_MAGIC or len(head) < HEADER_NBYTES:
            return None
        device, number, nbytes = RING_OWNER.unpack_from(head, RING_OWNER_AT)
        return device, number, os.fsdecode(head[_PATH_AT : _PATH_AT + min(nbytes, _LONGEST_PATH)])
    finally:
        os.close(descriptor)


def clear_rings() -> list[Path]:
    """Remove rings of this user's killed captures that no archive needs any more; which they were.

    One that its archive still names holds what a repair moves into the parts, and stays. Where
    the archive is not at its place any more, it may have been moved: the ring stays for an hour.
    """
    cleared = []
    for ring in SHARED_MEMORY.glob(f"{RING_PREFIX}*"):
        with suppress(OSError):
            owner = ring_owner(ring)
            if owner is not None and owner[2] and not _is_needed(ring, Path(owner[2])):
                ring.unlink()
                cleared.append(ring)
    return cleared


def _is_needed(ring: Path, directory: Path) -> bool:
    if not directory.is_dir():
        return time.time() - ring.stat().st_mtime < QUIET_SECONDS
    writer = read_run(directory).get("writer")
    return isinstance(writer, dict) and writer.get("ring") == ring.name


def _remove_rank(directory: Path) -> None:
    """Remove what a rank of an older run has left; other ranks of the new one may do so, too.

    Who can rename it removes it.
    """
    try:
        ring = ring_left_by(directory)  # perhaps in shared memory, where nobody else removes it
        aside = directory.rename(directory.with_name(f".removed-{os.getpid()}-{directory.name}"))
    except FileNotFoundError:
        return
    shutil.rmtree(aside)
    if ring is not None:
        ring.unlink(missing_ok=True)


class RankDirectory:
    """Where one rank of a run writes: ``root/worldsizeW_global_rankR``."""

    def __init__(self, root: Path, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ArchiveError(f"rank {rank} does not exist in a world of {world_size}")
        self.root = root
        self.world_size, self.rank = world_size, rank
        self.path = root / f"worldsize{world_size}_global_rank{rank}"

    def create(self, *, overwrite: bool) -> None:
        """Make the directory; refuse one that another run has filled, unless told to replace it."""
        for other in self._in_the_way():
            if writer_lives(read_run(other), other) or is_held(self.root / COMPACTING):
                raise ArchiveError(
                    f"{other} is still being written or compacted",
                    hint="wait until that has ended, or choose another path",
                )
            if not overwrite:
                raise ArchiveError(
                    f"{self.root} already holds a run: {other.name}",
                    hint="choose another path, or replace it: --overwrite, or overwrite=True",
                )
            _remove_rank(other)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise ArchiveError(
                f"cannot make {self.path}: {error.strerror}",
                hint="choose a path that can be written to",
            ) from error

    def _in_the_way(self) -> list[Path]:
        """What an older run has left here; other ranks of this one are known by their names.

        Were each looked at, 4,096 ranks that begin together would ask 16 million times.
        """
        own = (self.world_size, self.rank)
        named = (
            path
            for path, rank in _named_ranks(self.root)
            if rank == own or rank[0] != self.world_size
        )
        return sorted(path for path in named if is_own_directory(path))

    def write_run(self, facts: Mapping[str, Any]) -> None:
        write_whole(self.path / schema.RUN_FILE, run_text(facts))

    def write_text(self, model: str, name: str, text: str) -> None:
        directory = self.path / file_name(model)
        directory.mkdir(exist_ok=True)
        write_whole(directory / file_name(name), text)

    def step_directory(self, model: str, step: int) -> Path:
        """The directory of a step's parts, made where it is missing."""
        path = self.step_path(model, step)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def step_path(self, model: str, step: int) -> Path:
        """Where the parts of a step belong."""
        return self.path / file_name(model) / str(step)
