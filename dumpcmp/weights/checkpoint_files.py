"""Opens the weights of checkpoints, archives and single files, by name; elements are mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.paths import own_bytes, rank_directories
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.importing.foreign import Foreign, ForeignFile, in_natural_order
from dumpcmp.importing.gathering import opened
from dumpcmp.importing.titles import by_custom
from dumpcmp.nouns.budgets import WEIGHT_INDEX, Spending
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import DTYPES

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".npz")  # the first that a directory has
_INDEX = ".safetensors.index.json"
# A .pt of a trainer has the weights in one of these, beside one of those.
_TREES = ("model", "module", "state_dict", "model_state_dict")
_BESIDE = frozenset((
    "optimizer", "optim", "optimizer_state_dict", "lr_scheduler", "scheduler", "epoch", "iteration",
    "step", "global_step", "rng_state",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint, as one rank has it; elements come when they are asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], NDArray[np.generic]]  # bits of the storage type
    rank: int = 0
    is_buffer: bool = False  # known of an archive alone
    problem: str = ""  # why there are no elements

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].nbytes if self.dtype in DTYPES else 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights of a path: by name, and of each name by rank."""

    path: Path
    weights: Mapping[str, Mapping[int, Weight]]
    world_size: int = 1
    remarks: tuple[str, ...] = ()


@contextmanager
def opened_weights(path: str | Path, step: int | None = None) -> Iterator[Checkpoint]:
    """The weights at `path`: a Hugging Face directory, one file, or an archive.

    Of an archive they are those that were recorded last, or last up to the step `step`.
    """
    root = place(path)
    if isinstance(root, RemotePath):
        root.refresh()
    if root.is_dir() and rank_directories(root):
        yield _of_archive(root, step)
        return
    files = [root] if root.is_file() else _files_in(root)
    if not files:
        raise ArchiveError(
            f"{root} has no weights",
            hint=f"give an archive, a file, or a directory of files that end in "
            f"{', '.join(SUFFIXES)}",
        )
    with ExitStack() as stack:
        yield _of_files(root, files, stack)


def _files_in(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ArchiveError(f"{root} is not there", hint="give a checkpoint or an archive")
    names = sorted(_names_below(root), key=in_natural_order)
    for suffix in SUFFIXES:
        found = [name for name in names if name.endswith(suffix)]
        if suffix == ".bin":
            found = [name for name in found if "model" in name.rpartition("/")[2]]
        if found:
            return [root / name for name in _listed(root, names) or _without_copies(found)]
    return []


def _names_below(root: Path) -> Iterator[str]:
    if isinstance(root, RemotePath):
        yield from root.store.below(root.key)
    else:
        yield from (each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file())


def _listed(root: Path, names: Sequence[str]) -> list[str]:
    """The files that the index of a checkpoint names; all of them must be there."""
    index = next((name for name in names if name.endswith(_INDEX)), None)
    if index is None:
        return []
    file = root / index
    Spending(WEIGHT_INDEX, file, file.stat().st_size)
    try:
        files = set(json.loads(own_bytes(file, WEIGHT_INDEX.nbytes) or b"")["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveError(
            f"{file} is no index of a checkpoint: {error!r}", hint="remove it, or write it again"
        ) from None
    room = index.rpartition("/")[0]
    found = sorted(
        (f"{room}/{name}" if room else str(name) for name in files), key=in_natural_order
    )
    if lost := [name for name in found if name not in names]:
        raise ArchiveError(
            f"{file} names {lost[0]}, which is not there", hint="copy all files of the checkpoint"
        )
    return found


def _without_copies(names: list[str]) -> list[str]:
    """Of a directory that holds the weights twice, those of Hugging Face's own names."""
    own = [name for name in names if name.rpartition("/")[2].startswith("model")]
    others = [name for name in names if name.rpartition("/")[2].startswith("consolidated")]
    return own if own and len(own) + len(others) == len(names) else names


def _of_files(root: Path, files: Sequence[Path], stack: ExitStack) -> Checkpoint:
    found: dict[str, dict[int, Weight]] = {}
    remarks: list[str] = []
    for path in files:
        file = stack.enter_context(opened(path, _format(path)))
        rank = by_custom(path.relative_to(root).as_posix(), "").rank if path != root else 0
        values, left = _weights_of(file.listed().values)
        if left:
            remarks.append(f"{counted(left, 'value')} of {path.name} are no weights")
        for name, value in values.items():
            held = found.setdefault(name, {})
            if rank in held:
                raise ArchiveError(
                    f"{name!r} is in two files of {root}, of which one is {path.name}",
                    hint="give the directory of one checkpoint alone",
                )
            held[rank] = _weight(file, name, value, rank)
    world_size = 1 + max((rank for held in found.values() for rank in held), default=0)
    return Checkpoint(root, found, world_size, tuple(remarks))


def _format(path: Path) -> str:
    return {".safetensors": "safetensors", ".npz": "npz"}.get(path.suffix, "torch")


def _weights_of(values: Sequence[Foreign]) -> tuple[dict[str, Foreign], int]:
    """The weights among the values of a file, by name, and how many other values it has."""
    heads = {value.name.partition(".")[0] for value in values}
    trees = [tree for tree in _TREES if tree in heads]
    if not trees or not heads & _BESIDE:
        return {value.name: value for value in values}, 0
    inside = f"{trees[0]}."
    named = {v.name.removeprefix(inside): v for v in values if v.name.startswith(inside)}
    return named, len(values) - len(named)


def _weight(file: ForeignFile, name: str, value: Foreign, rank: int) -> Weight:
    load = partial(file.bits, value)
    return Weight(name, value.dtype, value.shape, load, rank, problem=value.problem)


def _of_archive(root: Path, step: int | None) -> Checkpoint:
    archive = Archive(root)
    found: dict[str, dict[int, Weight]] = {}
    for model in archive.models:
        prefix = f"{model}." if len(archive.models) > 1 else ""
        for number in archive.steps(model):
            if step is None or number <= step:
                for key, shards in _weight_records(archive, model, number):
                    name = prefix + _name(key)
                    for record in shards:
                        found.setdefault(name, {})[record.rank] = _recorded(archive, name, record)
    if not found:
        raise ArchiveError(
            f"{root} has no weights",
            hint="dump it with --weights, and without --io output or --layer",
        )
    return Checkpoint(root, found, archive.world_size)


def _weight_records(
    archive: Archive, model: str, step: int
) -> Iterator[tuple[Key, Sequence[Record]]]:
    """Parameters and buffers, in order of time: at the end of a run some have changed."""
    for key in archive.keys_of(model, step):
        if key.slot.is_weight:
            yield key, archive.shards(key)
    for key, records in archive.effect_values_at(model, step).items():
        if key.op == Effect.STATE.op and key.slot.is_weight:
            yield key, records


def _name(key: Key) -> str:
    is_own = key.op.is_effect or key.op.module == ROOT
    return key.slot.name if is_own else f"{key.op.module}.{key.slot.name}"


def _recorded(archive: Archive, name: str, record: Record) -> Weight:
    problem = record.problem
    if record.kept is Kept.SUMMARY:
        problem = "the archive has a Summary alone; dump with --weights"
    if 0 in record.shape:
        problem = "it has no elements: the program has packed it, or has let go of it"
    return Weight(
        name, record.dtype, record.shape, lambda: archive.load_own(record).bits, record.rank,
        record.key.slot.kind == "buffer", problem,
    )  # fmt: skip
