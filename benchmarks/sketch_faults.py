"""Which changes of a tensor a sketch sees, beside min, max, mean, std and L2."""

from collections.abc import Callable

import numpy as np

from benchmarks.sketch_accuracy import rounded, truth
from benchmarks.tables import Table
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.summary import Recipe, Summary, summarise

ROWS, WIDTH, HEADS = 1024, 1024, 8
NOISE = np.random.default_rng(1)


def one_token(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[700] = NOISE.standard_normal(WIDTH)
    return x


def one_element(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[333, 77] += 1
    return x


def swapped(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[[3, 900]] = x[[900, 3]]
    return x


def permuted(x: np.ndarray) -> np.ndarray:
    heads = x.reshape(ROWS, HEADS, -1)
    return heads[:, [1, 0, *range(2, HEADS)]].reshape(x.shape)


def flipped(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[12, 34] *= -1
    return x


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "two rows swapped": swapped,
    "rows rolled by one": lambda x: np.roll(x, 1, 0),
    "two heads permuted": permuted,
    "one sign flipped": flipped,
    "one wrong token": one_token,
    "one element + 1": one_element,
    "scaled by 1.001": lambda x: x * 1.001,
    "noise of 1e-3": lambda x: x * (1 + 1e-3 * NOISE.standard_normal(x.shape)),
}


def moments_change(one: Summary, two: Summary) -> float:
    """The largest change of min, max, mean, std and L2, in units of golden's std."""
    names = ("min", "max", "mean", "std")
    changes = [abs(getattr(one, name) - getattr(two, name)) / one.std for name in names]
    largest: float = max(*changes, abs(one.norm - two.norm) / one.norm)
    return largest


def seen(change: float) -> str:
    return f"{change:.1e}" if change > 1e-12 else "no"


def table() -> Table:
    rng = np.random.default_rng(0)
    golden = rounded(rng.standard_normal((ROWS, WIDTH)), "float32")
    mine = summarise(golden, Recipe(num_hashes=3))
    rows = []
    for name, change in CHANGES.items():
        target = rounded(change(golden.numbers().astype(np.float64)), "float32")
        its = summarise(target, Recipe(num_hashes=3))
        got = estimate(mine, its)
        place = str(list(got.worst)) if got.worst else "spread out"
        rows.append([
            name, f"{truth(golden, target):.3e}", f"{got.rel_l2:.3e}", place,
            seen(moments_change(mine, its)),
        ])  # fmt: skip
    return Table(
        "What a sketch sees, beside min, max, mean, std and L2",
        ["change", "true rel_l2", "sketch", "largest difference at", "other statistics"],
        rows,
        f"fp32, {ROWS} × {WIDTH}, k = 512 with three hashes (one gives the distance, three the "
        "place). The last column is the largest change of the five statistics.",
    )
