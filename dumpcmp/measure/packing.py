"""The one compound element in which a Summary lies in a part: pack and unpack."""

import numpy as np
from numpy.typing import NDArray

from dumpcmp.errors import CheckError
from dumpcmp.measure.sketch import VERSION, Sketch
from dumpcmp.measure.summary import Summary

# Field -> what it is; `docs/format.md` explains the ones that not every summary has.
_COUNTS = ("count", "num_nan", "num_posinf", "num_neginf", "num_zero")
_NUMBERS = ("min", "max", "mean", "std", "norm", "sum", "sum_squares")
_DERIVED = ("mean", "std", "norm")  # from the sums; in the file for readers without us


def packing(summary: Summary) -> np.dtype[np.void]:
    """The type in which `summary` lies in a part: one HDF5 compound, little-endian, unpadded."""
    fields: list[tuple[str, object] | tuple[str, object, tuple[int, ...]]] = [
        *((name, "<i8") for name in _COUNTS),
        *((name, "<f8") for name in _NUMBERS),
        ("digest", "S32"),
    ]
    if summary.whole:
        fields.append(("whole", "<i8", (len(summary.whole),)))
    if summary.sketch is not None:
        fields += [("sketch_version", "<i8"), ("sketch_seed", "<i8")]
        fields.append(("sketch", "<f8", summary.sketch.sums.shape))
    if summary.segments:
        fields.append(("segments", "<f8", (len(summary.segments), *summary.segments[0].sums.shape)))
    if summary.reduced:
        fields.append(("reduced", [(name, "<f8") for name in summary.reduced]))
    if summary.reduce_problem:
        fields.append(("reduce_problem", "S160"))
    return np.dtype(fields)


def pack(summary: Summary) -> NDArray[np.void]:
    """`summary` as the one compound element that a part holds."""
    packed = np.zeros((), packing(summary))
    for name in (*_COUNTS, *_NUMBERS):
        packed[name] = getattr(summary, name)
    packed["digest"] = summary.digest.encode()
    if summary.whole:
        packed["whole"] = summary.whole
    if summary.sketch is not None:
        packed["sketch_version"], packed["sketch_seed"] = VERSION, summary.sketch.seed
        packed["sketch"] = summary.sketch.sums
    if summary.segments:
        packed["segments"] = np.stack([s.sums for s in summary.segments])
    for name, number in summary.reduced.items():
        packed["reduced"][name] = number
    if summary.reduce_problem:
        packed["reduce_problem"] = summary.reduce_problem.encode()[:160]
    return packed


def unpack(packed: NDArray[np.void], dtype: str, shape: tuple[int, ...]) -> Summary:
    """The Summary of a tensor of `dtype` and `shape` that `pack` made."""
    names = packed.dtype.names or ()
    if "sketch" in names and int(packed["sketch_version"]) != VERSION:
        raise CheckError(
            f"a sketch of version {int(packed['sketch_version'])} cannot be read; "
            f"this dumpcmp reads version {VERSION}"
        )
    seed = int(packed["sketch_seed"]) if "sketch" in names else 0
    numbers = {name: float(packed[name]) for name in _NUMBERS if name not in _DERIVED}
    counts = {name: int(packed[name]) for name in _COUNTS}
    segments = packed["segments"] if "segments" in names else ()
    reduced_names = packed.dtype["reduced"].names or () if "reduced" in names else ()
    problem = bytes(packed["reduce_problem"]) if "reduce_problem" in names else b""
    return Summary(
        dtype=dtype,
        shape=shape,
        **counts,
        **numbers,  # type: ignore[arg-type]
        digest=bytes(packed["digest"]).decode("ascii", "replace"),
        sketch=Sketch(np.array(packed["sketch"]), seed) if "sketch" in names else None,
        segments=tuple(Sketch(np.array(sums), seed) for sums in segments),
        whole=tuple(int(n) for n in packed["whole"]) if "whole" in names else (),
        reduced={name: float(packed["reduced"][name]) for name in reduced_names},
        reduce_problem=problem.decode("utf-8", "replace"),
    )
