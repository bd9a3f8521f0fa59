"""How close the distance that two sketches tell comes to the truth."""

from dataclasses import replace

import numpy as np

from benchmarks.tables import Table
from dumpcmp.nouns.value import DTYPES, Value
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.sketch import spread
from dumpcmp.summary.summary import Recipe, Summary, summarise

SHAPE = (256, 1024)
SIZES = (64, 128, 256, 512, 1024, 2048)
ERRORS = tuple(10.0**-power for power in range(1, 10))
TRIALS = 24


def rounded(numbers: np.ndarray, dtype: str) -> Value:
    """`numbers` in `dtype`, rounded to nearest."""
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32)
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
        return Value(DTYPES[dtype], (bits >> 16).astype(np.uint16))
    return Value(DTYPES[dtype], numbers.astype(DTYPES[dtype].storage))


def activations(rng: np.random.Generator) -> np.ndarray:
    """Numbers like a residual stream's: normal, with four channels sixty times as large."""
    numbers = rng.standard_normal(SHAPE)
    numbers[:, rng.choice(SHAPE[1], 4, replace=False)] *= 60
    return numbers


def perturbed(golden: Value, error: float, rng: np.random.Generator) -> Value:
    """A target at about `error`: noise everywhere, or in 64 elements small enough for it."""
    numbers = golden.numbers().astype(np.float64)
    level = error
    chosen = np.ones(numbers.shape, bool)
    if error < 4 * golden.dtype.eps:
        level = 4 * golden.dtype.eps
        magnitude = error * np.linalg.norm(numbers) / (level * 8)
        order = np.argsort(np.abs(np.abs(numbers) - magnitude), axis=None)
        chosen = np.zeros(numbers.shape, bool)
        chosen.flat[order[:64]] = True
    noise = np.where(chosen, rng.standard_normal(numbers.shape) * np.abs(numbers) * level, 0)
    return rounded(numbers + noise, golden.dtype.name)


def truth(golden: Value, target: Value) -> float:
    one, two = (side.numbers().astype(np.float64) for side in (golden, target))
    return float(np.linalg.norm(two - one) / np.linalg.norm(one))


def ratios(dtype: str, error: float) -> tuple[float, dict[int, list[float]]]:
    """The median truth, and estimate over truth by size of the sketch."""
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    truths = []
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        golden = rounded(activations(rng), dtype)
        target = perturbed(golden, error, rng)
        real = truth(golden, target)
        truths.append(real)
        recipe = Recipe(max(SIZES), seed=trial)
        sides = [summarise(side, recipe, digest="") for side in (golden, target)]
        for size in SIZES:
            one, two = (_folded(side, size) for side in sides)
            found[size].append(estimate(one, two).rel_l2 / real)
    return float(np.median(truths)), found


def _folded(summary: Summary, size: int) -> Summary:
    assert summary.sketch is not None
    return replace(summary, sketch=summary.sketch.folded(size))


def table() -> Table:
    rows = []
    for dtype in ("float32", "bfloat16"):
        for error in ERRORS:
            real, found = ratios(dtype, error)
            cells = [f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in found.values()]
            rows.append([dtype, f"{real:.1e}", *cells])
    rows.append(["stated", "", *(f"1 ± {spread(size):.3f}" for size in SIZES)])
    return Table(
        "Estimate of rel_l2 over the truth, by size of the sketch",
        ["dtype", "true rel_l2", *(f"k = {size}" for size in SIZES)],
        rows,
        f"{TRIALS} draws of {SHAPE[0]} × {SHAPE[1]} with four outlier channels; mean ± standard "
        "deviation of estimate / truth. Where a dtype cannot hold so small a relative change, "
        "64 small elements change.",
    )
