"""What many small values take on disk, and what a comparison of all steps of a long run takes.

Run as ``python -m benchmarks.endurance FOLDER [SCALE]``; a scale of 0.1 does a tenth.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import dumpcmp

NUM_OPS, NUM_CELLS, NUM_TOKENS = 200_000, 4_000, 12_268


class Many(nn.Module):
    """So many ops on what it is given."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x * 1.0001
        return x


class Recurrent(nn.Module):
    """A GRU that is written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(1, 64)
        for row in x.unbind():
            state = self.cell(row[None], state)
        return state


class Token(nn.Module):
    """One step of a generation, of 21 values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.a(x))
        return torch.relu(self.b(y)) + x


@contextmanager
def told(what: str) -> Iterator[None]:
    """Print what the block took."""
    began, computed = time.monotonic(), time.process_time()
    yield
    seconds, own = time.monotonic() - began, time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {seconds:.1f} s, {own:.1f} s of computing, peak {peak:.0f} MB", flush=True)


def measure_size(path: Path, model: nn.Module, x: Tensor) -> None:
    """Dump one step of `model`, and print what it takes beyond its elements."""
    with told(path.name), torch.no_grad(), dumpcmp.capture(model, path):
        model(x)
    records = list(dumpcmp.Archive(path).values())
    held = sum(r.location.nbytes for r in records if r.location and r.same_as is None)
    taken = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    beyond = (taken - held) / len(records)
    print(f"{len(records):,} records, {held:,} bytes of data, {taken:,} on disk: {beyond:.0f} each")


def dump_tokens(path: Path, count: int, change: Callable[[Tensor], Tensor]) -> None:
    """Dump a generation of `count` tokens."""
    model, draws = Token(), torch.Generator().manual_seed(3)
    with told(path.name), torch.no_grad(), dumpcmp.capture(model, path):
        for _ in range(count):
            model(change(torch.randn(1, 16, generator=draws)))


def compare_tokens(folder: Path, tokens: str | None) -> None:
    """Compare two generations whose values all differ, and print what that takes."""
    with told(f"compare {tokens or 'all'}"):
        outcome = dumpcmp.compare(folder / "golden", folder / "target", tokens=tokens)
    print(f"{len(outcome.rows):,} rows: {outcome.headline}", flush=True)


def main(folder: str, scale: str = "1") -> None:
    room, share = Path(folder), float(scale)
    num_ops, num_cells, num_tokens = (int(n * share) for n in (NUM_OPS, NUM_CELLS, NUM_TOKENS))
    measure_size(room / f"{num_ops} ops", Many(num_ops), torch.ones(4))
    measure_size(room / f"GRU of {num_cells} steps", Recurrent(), torch.randn(num_cells, 64))
    dump_tokens(room / "golden", num_tokens, lambda x: x)
    dump_tokens(room / "target", num_tokens, lambda x: x * (1 + 1e-6))
    compare_tokens(room, f"0-{num_tokens // 25}")
    compare_tokens(room, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
