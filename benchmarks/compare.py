"""How fast pairs are measured, beside reading them once and beside separate torch calls."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.tables import Table
from dumpcmp.measure import core
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.value import value_of

SIZES = {"4 KB": 1 << 12, "256 KB": 1 << 18, "32 MB": 1 << 25}
REPEATS = 7


def naive(golden: Tensor, target: Tensor) -> list[float]:
    """The same numbers by one torch call after another, as most tools take them."""
    g, t = golden.flatten().float(), target.flatten().float()
    d = t - g
    rms = g.pow(2).mean().sqrt()
    ordered = [x.contiguous().view(torch.int32).long() for x in (g, t)]
    rows = [x.view(-1, 1024) if x.numel() % 1024 == 0 else x.view(1, -1) for x in (g, d)]
    return [
        float(x)
        for x in (
            torch.equal(golden, target),
            torch.nn.functional.cosine_similarity(g.double(), t.double(), dim=0),
            torch.corrcoef(torch.stack([g.double(), t.double()]))[0, 1],
            d.double().norm() / g.double().norm(),
            (d.double() * g.double()).sum() / g.double().pow(2).sum(),
            d.double().pow(2).mean().sqrt(),
            d.abs().max(),
            d.abs().argmax(),
            d.abs().mean(),
            (d.abs() / (g.abs() + rms)).max(),
            (d.abs() / (g.abs() + rms)).mean(),
            (d.abs() / g.abs()).nan_to_num(0).max(),
            (ordered[0] - ordered[1]).abs().max(),
            (~torch.isclose(t, g)).sum(),
            (rows[1].norm(dim=1) / rows[0].norm(dim=1)).max(),
            *(f(x) for x in (g, t) for f in (torch.min, torch.max, torch.mean, torch.norm)),
            *(f(x).sum() for x in (g, t) for f in (torch.isnan, torch.isinf)),
        )
    ]


def read_once(golden: Tensor, target: Tensor) -> None:
    """Read both sides with the fastest kernel there is."""
    for side in (golden, target):
        side.view(torch.int32).max()


def seconds(work: Callable[[], object], repeats: int) -> float:
    """CPU time of one call."""
    begin = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - begin) / repeats


def medians(works: dict[str, Callable[[], object]], nbytes: int) -> dict[str, float]:
    """The median CPU time of each work, taken in turns so that noise hits all alike."""
    repeats = max(1, (1 << 21) // nbytes)
    for work in works.values():
        work()
    rounds = [
        {name: seconds(work, repeats) for name, work in works.items()} for _ in range(REPEATS)
    ]
    return {name: statistics.median(one[name] for one in rounds) for name in works}


def rows() -> list[list[str]]:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for label, nbytes in SIZES.items():
            golden = torch.randn(nbytes // dtype.itemsize).to(dtype)
            target = (golden.float() * (1 + 0.01 * torch.randn(golden.shape))).to(dtype)
            values = value_of(golden), value_of(target)
            times = medians(
                {
                    "ours": partial(measure, *values),
                    "equal": partial(measure, values[0], values[0]),
                    "naive": partial(naive, golden, target),
                    "read": partial(read_once, golden, target),
                },
                2 * nbytes,
            )
            found.append(
                [
                    str(dtype).removeprefix("torch."),
                    label,
                    f"{2 * nbytes / times['ours'] / 1e9:.2f}",
                    f"{2 * nbytes / times['equal'] / 1e9:.2f}",
                    f"{2 * nbytes / times['naive'] / 1e9:.3f}",
                    f"{times['naive'] / times['ours']:.1f}",
                    f"{times['ours'] / times['read']:.0f}",
                ]
            )
    return found


def two_threads() -> float:
    """How much faster two threads measure a large pair, by the wall clock: the best of five."""
    golden = torch.randn(1 << 25)
    pair = value_of(golden), value_of(golden * 1.001)

    def best(number: int) -> float:
        times = []
        with core.threads(number):
            for _ in range(5):
                begin = time.perf_counter()
                measure(*pair)
                times.append(time.perf_counter() - begin)
        return min(times)

    return best(1) / best(2)


def startup() -> float:
    """Wall seconds until ``dumpcmp compare --help`` has answered: the best of five."""
    command = [sys.executable, "-m", "dumpcmp", "compare", "--help"]

    def once() -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begin

    return min(once() for _ in range(5))


def table() -> Table:
    """Throughput of the measuring, in golden's and the target's bytes."""
    torch.set_num_threads(1)
    return Table(
        "compare",
        ("dtype", "tensor", "GB/s", "GB/s, equal", "GB/s, naive", "times naive", "reads of both"),
        rows(),
        "One core, CPU time, medians of interleaved repeats. Naive: the same numbers by separate "
        "torch calls. The last column is the time in units of reading both sides once. "
        f"Two threads measure a pair of 128 MB each {two_threads():.2f} times as fast, by the wall "
        f"clock. `dumpcmp compare --help` answers in {startup():.2f} s.",
    )
