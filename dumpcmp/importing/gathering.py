"""Which files of a source are imported, of which tool they are, and what each value is called."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.execute import in_batches, run_each
from dumpcmp.importing.foreign import (
    Foreign,
    ForeignFile,
    ForeignFileError,
    Listed,
    check_regular,
    in_natural_order,
)
from dumpcmp.importing.fx_file import ConvertedGeFile, FxFile
from dumpcmp.importing.ge_file import GeFile
from dumpcmp.importing.msprobe import CONSTRUCT, DUMP, TENSORS, MsprobeRank
from dumpcmp.importing.numpy_file import NpyFile, NpzFile
from dumpcmp.importing.safetensors_file import SafetensorsFile
from dumpcmp.importing.sglang import is_sglang, sglang_title
from dumpcmp.importing.titles import Title, by_custom, by_pattern
from dumpcmp.importing.torch_file import TorchFile
from dumpcmp.importing.torchair import (
    converted_to,
    graph_texts,
    is_fx,
    is_torchair,
    torchair_titles,
)
from dumpcmp.nouns.errors import ArchiveError, SelectionError

_KINDS: dict[str, type[ForeignFile]] = {
    ".safetensors": SafetensorsFile,
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
    ".bin": TorchFile,
}
FORMATS: dict[str, tuple[str, ...]] = {  # what each reads, by suffix
    "auto": (".safetensors", ".npy", ".npz", ".pt", ".pth"),
    "safetensors": (".safetensors",),
    "npy": (".npy",),
    "npz": (".npz",),
    "torch": (".pt", ".pth", ".bin"),
    "msprobe": (".pt",),
    "sglang": (".pt",),
    "torchair": (".npy", ".npz", ".bin"),
}
_PER_FILE = 1 << 20  # bytes that listing a file counts as, of a batch

Titled = tuple[Foreign, Title]


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source."""

    root: Path
    format: str
    names: tuple[str, ...]  # from the root
    left_out: tuple[str, ...] = ()  # of which nothing is taken
    texts: tuple[str, ...] = ()  # of graphs, which say what values are called

    @property
    def numbers(self) -> tuple[str, ...]:
        """What numbers are there in place of tensors, such as ``min_max``."""
        found = {converted_to(name) for name in self.names} if self.format == "torchair" else set()
        return tuple(sorted(found - {""}))


def find(source: Path, format: str, globs: Sequence[str] = ()) -> SourceFiles:
    """The files of `source` that are of `format`; with `globs`, of those that one of these fits."""
    if format not in FORMATS:
        raise SelectionError(f"format {format!r} is not known", hint=f"known: {', '.join(FORMATS)}")
    if isinstance(source, RemotePath):
        source.refresh()
    if source.is_file():
        return _one_file(source, format)
    if not source.is_dir():
        check_regular(source)
        raise ArchiveError(f"{source} is not there", hint="give a directory or file of a dump")
    names = sorted(_below(source), key=in_natural_order)
    own = [name for name in names if not (source / name).is_symlink()]
    chosen = [name for name in own if not globs or _fits(name, globs)]
    format = _recognised(chosen) if format == "auto" else format
    taken = tuple(name for name in chosen if _is_of(format, name))
    told = (DUMP, CONSTRUCT) if format == "msprobe" else ()
    rest = (name for name in names if not name.endswith(told or ("\0",)))
    texts = graph_texts(own) if format == "torchair" else ()
    links = set(names).difference(own)
    left_out = (
        f"{name} (a symbolic link, which is not followed)" if name in links else name
        for name in sorted(set(rest) - set(taken) - set(texts))
    )
    return SourceFiles(source, format, taken, tuple(left_out), texts)


def _is_of(format: str, name: str) -> bool:
    if format == "torchair":
        return is_torchair(name)
    return name.endswith(FORMATS[format])


def _one_file(source: Path, format: str) -> SourceFiles:
    if format == "auto" and source.suffix not in FORMATS["auto"]:
        raise SelectionError(
            f"{source} has none of the endings {', '.join(FORMATS['auto'])}",
            hint="say what it is: --format safetensors, npy, npz or torch",
        )
    return SourceFiles(source.parent, format, (source.name,))


def _fits(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _below(source: Path) -> Iterator[str]:
    if isinstance(source, RemotePath):
        yield from source.store.below(source.key)
        return
    for room, _, names in os.walk(source):
        yield from (Path(room, name).relative_to(source).as_posix() for name in names)


def _recognised(names: Sequence[str]) -> str:
    """The tool whose names these are; auto where none of those with names of their own."""
    if any(name.rpartition("/")[2] == DUMP or f"{TENSORS}/" in name for name in names):
        return "msprobe"
    if any(name.endswith(".pt") and is_sglang(name) for name in names):
        return "sglang"
    if any(map(is_torchair, names)):
        return "torchair"
    return "auto"


def opened(path: Path, format: str) -> ForeignFile:
    """The file at `path`, to be read in a ``with`` block."""
    check_regular(path)
    if format == "torchair":
        return _of_torchair(path)
    suffix = path.suffix if path.suffix in FORMATS[format] else FORMATS[format][0]
    return _KINDS[suffix](path)


def _of_torchair(path: Path) -> ForeignFile:
    if is_fx(path.name):
        return FxFile(path)
    return (ConvertedGeFile if converted_to(path.name) else GeFile)(path)


def list_files(format: str, paths: Sequence[Path]) -> list[Listed]:
    """What some files have."""
    found = []
    for path in paths:
        try:
            with opened(path, format) as file:
                found.append(file.listed())
        except OSError as error:
            raise ForeignFileError(f"{path}: {error.strerror or error}") from None
    return found


def gather(found: SourceFiles, pattern: str | None, workers: Executor) -> list[Titled]:
    """Every value of the files, and what it is called; `workers` read what the files have."""
    paths = [found.root / name for name in found.names]
    batches = in_batches(paths, workers, lambda _: _PER_FILE)
    listed = list(
        chain.from_iterable(run_each(partial(list_files, found.format), batches, workers))
    )
    if pattern is not None:
        return _by_title(found, listed, by_pattern(pattern))
    if found.format == "msprobe":
        return _of_msprobe(found, listed)
    if found.format == "sglang":
        return _of_sglang(found, listed)
    if found.format == "torchair":
        return torchair_titles(found.root, found.names, listed, found.texts)
    without_path = _by_title(found, listed, by_custom)
    if _is_unique(without_path):
        return without_path
    return _by_title(found, listed, partial(by_custom, keeps_path=True))


def _by_title(
    found: SourceFiles, listed: Sequence[Listed], title: Callable[[str, str], Title]
) -> list[Titled]:
    return [
        (value, title(_stem(name), value.name))
        for name, each in zip(found.names, listed, strict=True)
        for value in each.values
    ]


def _stem(name: str) -> str:
    suffix = next((each for each in _KINDS if name.endswith(each)), "")
    return name.removesuffix(suffix)


def _is_unique(titled: Sequence[Titled]) -> bool:
    counts = Counter((t.rank, t.step, t.op, t.call or 0, t.slot) for _, t in titled)
    return not counts or max(counts.values()) == 1


def _of_sglang(found: SourceFiles, listed: Sequence[Listed]) -> list[Titled]:
    titled = (
        (value, sglang_title(name, value.name, each.words))
        for name, each in zip(found.names, listed, strict=True)
        for value in each.values
    )
    return _numbered([(value, title) for value, title in titled if title is not None])


def _numbered(titled: list[Titled]) -> list[Titled]:
    """The same with the number of the call: how often its op gave such a value before."""
    counts: Counter[tuple[int, int, str, str]] = Counter()
    numbered: dict[int, Title] = {}
    for at, (_, title) in sorted(enumerate(titled), key=lambda item: item[1][1].order or 0):
        name = title.rank, title.step, title.op, title.slot
        numbered[at] = replace(title, call=counts[name])
        counts[name] += 1
    return [(value, numbered[at]) for at, (value, _) in enumerate(titled)]


def _of_msprobe(found: SourceFiles, listed: Sequence[Listed]) -> list[Titled]:
    by_rank: dict[str, dict[str, Listed]] = {}
    for name, each in zip(found.names, listed, strict=True):
        room, _, last = name.rpartition("/")
        by_rank.setdefault(room.removesuffix(TENSORS).rstrip("/"), {})[last] = each
    for name in _dumps(found.root):  # of ranks that have statistics alone, too
        by_rank.setdefault(name.rpartition("/")[0], {})
    titled: list[Titled] = []
    for directory in sorted(by_rank, key=in_natural_order):
        files = by_rank[directory]
        rank = MsprobeRank.at(found.root / directory, directory, frozenset(files))
        titled += [
            (value, rank.title(name, value.name)) for name, e in files.items() for value in e.values
        ]
        titled += [(value, rank.named(call, slot)) for value, call, slot in rank.without]
    return titled


def _dumps(root: Path) -> list[str]:
    found = (name for name in _below(root) if name.rpartition("/")[2] == DUMP)
    return [name for name in found if not (root / name).is_symlink()]
