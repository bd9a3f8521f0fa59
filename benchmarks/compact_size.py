"""How much smaller compaction makes dumps, by model and by size of tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.subjects import Transformer
from benchmarks.tables import Table
from dumpcmp import demo
from dumpcmp.archive.read.reader import Archive
from dumpcmp.compacting import compact, nbytes_of
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.record import Kept


def decoder() -> None:
    """The demo decoder on 2,048 tokens at once."""
    model = demo.TinyDecoder().eval()
    model(torch.zeros(16, 128, dtype=torch.long), None)


def transformer() -> None:
    """The four-layer transformer on 16 × 96 tokens."""
    torch.manual_seed(0)
    model = Transformer(width=512, num_layers=4).eval()
    model(torch.randint(0, 128, (16, 96)))


def chain(rows: int) -> Callable[[], None]:
    """Sixteen layers whose outputs have `rows` × 1024 elements."""

    def run() -> None:
        torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(16)))(torch.randn(rows, 1024))

    return run


RUNS: dict[str, Callable[[], None]] = {
    "demo decoder, 2,048 tokens": decoder,
    "transformer of 4 layers, d 512": transformer,
    "tensors of 256 KB": chain(64),
    "tensors of 1 MB": chain(256),
    "tensors of 4 MB": chain(1024),
    "tensors of 16 MB": chain(4096),
}


def measured(run: Callable[[], None], path: Path) -> list[str]:
    torch.manual_seed(0)
    with torch.no_grad(), capture(None, path):
        run()
    before = nbytes_of(path)
    compact(path)
    archive = Archive(path)
    own = [r for r in archive.values() if r.same_as is None]
    num = sum(record.kept is Kept.SUMMARY for record in own)
    after = nbytes_of(path)
    return [
        readable(before), readable(after), f"{before / after:.0f} ×", f"{num} of {len(own)}"
    ]  # fmt: skip


def table() -> Table:
    rows = []
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory() as room:
            rows.append([name, *measured(run, Path(room, "d"))])
    return Table(
        "Size of compacted dumps",
        ["dump", "full", "compacted", "ratio", "summarised values"],
        rows,
        "fp32, eager, sketches of 512. Bytes of the parts, with all of HDF5's own. Tensors of up "
        "to 512 elements stay whole. Goal: 500 × at tensors of 4 MB and more.",
    )
