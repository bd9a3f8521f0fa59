"""What whole tensors cost a GPU: every module's output, by the bus, by memory and by the disk."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.summary_gpu import TOKENS, WIDTH, Block, hooked
from benchmarks.tables import Table
from dumpcmp.archive.write.ring import free_memory
from dumpcmp.dumping.capturing import capture
from dumpcmp.dumping.retention import Retention

LAYERS, STEPS = 8, 4  # 21.5 GB in all
BUFFER = 24 << 30  # which holds them
DD_MEGABYTES = 8192
SHARED = Path("/dev/shm")
Way = Callable[[nn.Module, Path], AbstractContextManager[object]]


class Pinned:
    """Copies every output to pinned memory on a side stream: all that the bus can do, no file."""

    def __init__(self) -> None:
        self.side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.places: list[Tensor] = []
        self.number = 0

    def __call__(self, output: Tensor) -> None:
        if self.number == len(self.places):
            self.places.append(torch.empty(output.shape, dtype=output.dtype, pin_memory=True))
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.places[self.number].copy_(output, non_blocking=True)
        output.record_stream(self.side)
        self.number += 1

    @contextmanager
    def around(self, model: nn.Module, _: Path) -> Iterator[None]:
        begin = model.register_forward_pre_hook(lambda *_: setattr(self, "number", 0))
        with hooked(model, self):
            yield
        begin.remove()
        self.places.clear()


def dumped(buffer: int | None = None) -> Way:
    keep = Retention(buffer=buffer)
    return lambda model, path: capture(
        model, path, level="modules", io="output", keep=keep, overwrite=True
    )


def seen(see: Callable[[Tensor], object]) -> Way:
    return lambda model, _: hooked(model, see)


def model_and_input() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).cuda().bfloat16().eval()
    return model, torch.randn(4, TOKENS // 4, WIDTH, device="cuda", dtype=torch.bfloat16)


def steps(model: nn.Module, x: Tensor, way: Way, path: Path) -> tuple[list[float], float, float]:
    """Seconds of each step until the device is idle; of all, with closing; until it is on disk."""
    spent = []
    inputs = [x.roll(step, 1) for step in range(STEPS)]  # what steps have in common is stored once
    began = time.perf_counter()
    with torch.no_grad(), way(model, path):
        for given in inputs:
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(given)
            torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
    whole = time.perf_counter() - began
    if not path.is_relative_to(SHARED):
        os.sync()  # what is in the cache only is not on the disk
    return spent, whole, time.perf_counter() - began


def warm_up(model: nn.Module, x: Tensor) -> None:
    """Have all kernels compiled, which a machine does once."""
    with (
        tempfile.TemporaryDirectory() as room,
        torch.no_grad(),
        capture(model, Path(room) / "d", level="modules", keep="summary"),
    ):
        model(x)


def dd_rate(directory: Path) -> float:
    """Bytes a second that ``dd`` writes there, past the cache where the file system can."""
    file = directory / "dd"
    command = ["dd", "if=/dev/zero", f"of={file}", "bs=16M", f"count={DD_MEGABYTES // 16}"]
    began = time.perf_counter()
    if subprocess.run([*command, "oflag=direct"], capture_output=True).returncode:
        subprocess.run([*command, "conv=fsync"], capture_output=True, check=True)
    seconds = time.perf_counter() - began
    file.unlink()
    return DD_MEGABYTES * 1e6 * 1.048576 / seconds


def table() -> Table:
    title = "A GPU step with every module's output kept whole"
    if not torch.cuda.is_available():
        return Table(title, ["needs"], [["a CUDA device, which this machine does not have"]])
    model, x = model_and_input()
    fits = min(free_memory() // 3, BUFFER)
    warm_up(model, x)
    disk = Path(tempfile.gettempdir())
    ways: dict[str, tuple[Way, Path]] = {
        "no capture": (lambda _model, _path: nullcontext(), disk),
        "hooks that do nothing": (seen(lambda _: None), disk),
        "aminmax of every output, by hooks": (seen(lambda output: output.aminmax()), disk),
        "pinned copies on a side stream, no file": (Pinned().around, disk),
        "dump into /dev/shm": (dumped(), SHARED),
        "dump into /dev/shm once more, of memory that was used": (dumped(), SHARED),
        "dump into /dev/shm, --buffer that holds the steps": (dumped(fits), SHARED),
        "dump onto the disk, --buffer that holds the steps": (dumped(fits), disk),
        "dump onto the disk": (dumped(), disk),
        "tensor.cpu() of every output": (seen(lambda output: output.cpu()), disk),
    }
    rows, base, pinned = [], 0.0, 0.0
    dd_before = dd_rate(disk)  # a disk may write the first gigabytes faster than those after
    for name, (way, where) in ways.items():
        room = Path(tempfile.mkdtemp(dir=where))
        spent, whole, synced = steps(model, x, way, room / "d")
        nbytes = sum(part.stat().st_size for part in room.rglob("*.h5"))
        shutil.rmtree(room)
        step = statistics.median(spent[1:])
        base, pinned = base or step, pinned or step * name.startswith("pinned")
        rates = [
            f"{nbytes / seconds / 1e9:.2f} GB/s" if nbytes else ""
            for seconds in (STEPS * step, whole, synced)
        ]
        beside = f"{step / pinned:.2f} ×" if pinned else ""
        first = f"{1000 * spent[0]:.0f} ms"
        rows.append([name, f"{1000 * step:.1f} ms", f"{step / base:.2f} ×", beside, first, *rates])
        each = ", ".join(f"{1000 * seconds:.0f}" for seconds in spent)
        print(rows[-1], f"{nbytes / 1e9:.1f} GB, {whole:.2f} s; steps {each} ms", flush=True)
    how = (
        f"{LAYERS} decoder layers, d {WIDTH}, {TOKENS} tokens, bf16, forward, module outputs, "
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; median of {STEPS - 1} steps "
        f"after the first, each until the device is idle. Rates: of a step; with opening, the "
        f"first step and closing; and until all is on the disk. dd with direct I/O "
        f"writes {dd_before / 1e9:.2f} GB/s onto the same disk before all this and "
        f"{dd_rate(disk) / 1e9:.2f} after, "
        f"{dd_rate(SHARED) / 1e9:.2f} GB/s into /dev/shm."
    )
    times = ["step", "of no capture", "of pinned copies", "first step"]
    headings = ["captured", *times, "step's rate", "whole", "synced"]
    return Table(title, headings, rows, how)
