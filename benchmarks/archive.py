"""Writing and reading an archive, beside the plainest ways to put the same bytes on disk."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from benchmarks.bytes_alone import hand_over
from benchmarks.tables import Table
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.built import built
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record

IS_BUILT = built("dumpcmp.archive.write._desk") is not None
PER_CALL = 4  # values of one op: two inputs, a weight, an output
SMALL_NBYTES = 64 << 10
KNOWN_NBYTES = 1 << 20  # larger values are left to the ordinary way
POOL_NBYTES = 64 << 20  # distinct tensors; larger cases use them again


@dataclass(frozen=True)
class Case:
    """`count` tensors of `nbytes` each, measured `repeats` times."""

    name: str
    count: int
    nbytes: int
    repeats: int


CASES = (
    Case("10,000 x 4 KB", 10_000, 4 << 10, 5),
    Case("2,000 x 256 KB", 2_000, 256 << 10, 5),
    Case("50 x 32 MB", 50, 32 << 20, 3),
)


class Dense:
    """A Source over a numpy array, as a capture on the CPU has them: it says where it lies."""

    def __init__(self, bits: NDArray[np.float32]) -> None:
        self._array = bits.view(np.uint8)
        self._bytes = self._array.data
        self.nbytes = bits.nbytes
        self.lying = bits.ctypes.data, bits.itemsize, bits.shape, (1,)
        self.digest = ""

    def copy_into(self, room: memoryview) -> None:
        if self.nbytes < SMALL_NBYTES:
            room[:] = self._bytes
        else:  # lets other threads run meanwhile
            np.copyto(np.frombuffer(room, np.uint8), self._array)


Handed = tuple[Call, list[tuple[Record, Dense]]]  # a call, and its values


@dataclass(frozen=True)
class Load:
    """The tensors of a case, in the forms that the writers take."""

    arrays: list[NDArray[np.float32]]
    names: list[str]
    ops: list[Handed]


def load_of(case: Case) -> Load:
    count = min(case.count, max(2, POOL_NBYTES // case.nbytes))
    rng = np.random.default_rng(0)
    pool = [rng.random(case.nbytes // 4, np.float32) for _ in range(count)]
    arrays = [pool[number % count] for number in range(case.count)]
    ops = [(Op(f"layers.{number // PER_CALL}.linear"), number) for number in range(case.count)]
    keys = [Key("Model", 0, op, 0, f"input.{number % PER_CALL}") for op, number in ops]
    records = [
        Record(key, number // PER_CALL, "float32", array.shape, (1,))
        for number, (key, array) in enumerate(zip(keys, arrays, strict=True))
    ]
    calls = [
        Call("Model", 0, op, 0, n // PER_CALL, "torch.nn.functional.linear", "model.py:31")
        for op, n in ops[::PER_CALL]
    ]
    values = list(zip(records, map(Dense, arrays), strict=True))
    taken = [values[n : n + PER_CALL] for n in range(0, len(values), PER_CALL)]
    names = [f"{key.op}.{key.slot}" for key in keys]
    return Load(arrays, names, list(zip(calls, taken, strict=True)))


def write_raw(load: Load, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for array in load.arrays:
        os.write(descriptor, array.data)
    os.close(descriptor)


def write_bytes(load: Load, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    hand_over(load.arrays, descriptor)
    os.close(descriptor)


def write_numpy(load: Load, path: Path) -> None:
    path.mkdir()
    for name, array in zip(load.names, load.arrays, strict=True):
        np.save(path / name, array)


def write_torch(load: Load, path: Path) -> None:
    # clones, for torch.save would write a tensor that is there twice only once
    tensors = zip(load.names, load.arrays, strict=True)
    torch.save({name: torch.from_numpy(array).clone() for name, array in tensors}, path)


def write_safetensors(load: Load, path: Path) -> None:
    tensors = zip(load.names, load.arrays, strict=True)
    safetensors.torch.save_file(
        {name: torch.from_numpy(array).clone() for name, array in tensors}, path
    )


def write_h5py(load: Load, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, array in zip(load.names, load.arrays, strict=True):
            file.create_dataset(name.replace(".", "/"), data=array)


def write_archive(load: Load, path: Path) -> float:
    """Gives the CPU seconds of this thread until all is handed over."""
    with ArchiveWriter(path) as sink:
        began, put = time.thread_time(), sink.put
        for call, given in load.ops:
            sink.call(call)
            for record, source in given:
                put(record, source)
        return time.thread_time() - began


def hand_known(load: Load, path: Path) -> float:
    """CPU seconds of this thread to hand over what is known, as a capture does from C."""
    with ArchiveWriter(path) as sink:
        first, *others = load.ops
        hand_over_plainly(sink, first)
        desk: Any = sink.desk
        step, forms = desk.step, [*desk.step.plan.forms]
        prepared = [(op, *known(desk, op, forms)) for op in others]
        gc.collect()  # of what was prepared, which a capture has long done
        lay_call, lay_value, began = desk.lay_call, desk.lay_value, time.thread_time()
        for op, declared, values in prepared:
            planned = lay_call(step, *declared)
            if planned is None:  # the ring is at its end, or somebody is at it
                hand_over_plainly(sink, op)
                continue
            for value, plainly in zip(values, op[1], strict=True):
                if lay_value(planned, *value) is None:
                    sink.put(*plainly)
        return time.thread_time() - began


def hand_over_plainly(sink: ArchiveWriter, op: Handed) -> None:
    sink.call(op[0])
    for record, source in op[1]:
        sink.put(record, source)


def known(desk: Any, op: Handed, forms: list[Any]) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    """What a capture keeps of a call and its values from step to step."""
    call, name = op[0], (op[0].op, op[0].call)
    values = [
        (record.key.slot, (*name, record.key.slot), form, record.order, *source.lying)
        for form, (record, source) in zip(forms, op[1], strict=True)
    ]
    return (name, call, desk.text_of(call), call.order), values


WRITERS: dict[str, Callable[[Load, Path], float | None]] = {
    "os.write": write_raw,
    "dumpcmp": write_archive,
    "bytes alone": write_bytes,
    "np.save each": write_numpy,
    "torch.save": write_torch,
    "safetensors": write_safetensors,
    "h5py create_dataset": write_h5py,
}


def read_archive(path: Path) -> float:
    archive = Archive(path)
    return float(sum(archive.load(record).bits.sum() for record in archive.values()))


def read_safetensors(path: Path) -> float:
    return float(sum(tensor.numpy().sum() for tensor in safetensors.torch.load_file(path).values()))


@contextmanager
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("DUMPCMP_BENCH_DIR")) as place:
        yield Path(place)


def timed(work: Callable[[], float | None]) -> tuple[float, float | None]:
    """Seconds of `work`, and what it gives."""
    began = time.perf_counter()
    given = work()
    return time.perf_counter() - began, given


def measure(case: Case) -> dict[str, float]:
    """Median seconds of each writer, and of reading back.

    The writers take turns, each round beginning with another one, after an untimed round: the
    first pages that a file system hands out, and those after a large file was removed, differ.
    """
    load = load_of(case)
    taken: dict[str, list[float]] = {}
    names = list(WRITERS)
    for turn in range(case.repeats + 1):
        found: dict[str, float] = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with room() as place:
                found |= run(name, load, place / "written")
        if turn and IS_BUILT and case.nbytes <= KNOWN_NBYTES:
            with room() as place:
                found["known"] = hand_known(load, place / "written")
        for name, time_taken in found.items() if turn else ():
            taken.setdefault(name, []).append(time_taken)
    return {name: statistics.median(times) for name, times in taken.items()}


def run(name: str, load: Load, path: Path) -> dict[str, float]:
    """Seconds of one writer, and of reading back where that is compared."""
    found = {}
    found[name], in_thread = timed(lambda: WRITERS[name](load, path))
    if in_thread is not None:
        found["thread"] = in_thread
        found["read"], _ = timed(lambda: read_archive(path))
    if name == "safetensors":
        found["read safetensors"], _ = timed(lambda: read_safetensors(path))
    return found


def row(case: Case) -> list[str]:
    found = measure(case)
    raw = found["os.write"]
    times = [f"{found[name] / raw:.2f}" for name in list(WRITERS)[1:]]
    reading = f"{found['read'] / found['read safetensors']:.2f}"
    each = [
        f"{1e6 * found[name] / case.count:.1f} us" if name in found else ""
        for name in ("os.write", "thread", "known")
    ]
    return [case.name, *each, *times, reading]


def table() -> Table:
    others = [f"{name} / raw" for name in list(WRITERS)[1:]]
    return Table(
        "archive",
        [
            "tensors",
            "raw os.write, each",
            "program's thread, each",
            "of known calls",
            *others,
            "read / safetensors",
        ],
        [row(case) for case in CASES],
        how=(
            "Time to write the tensors, as a ratio to os.write of the same bytes into one file; "
            "medians, the writers taking turns in changing order. dumpcmp: through the sink, from "
            f"opening it to the end of close(), a call and {PER_CALL} values an op, every value "
            "digested and indexed; program's thread: its CPU time until all is handed over, as "
            "Records, and of known calls as a capture does it. bytes alone: copied and digested by "
            "pieces, and written by another thread. read: open, map "
            "and sum every tensor, as a ratio to safetensors' load_file."
        ),
    )
