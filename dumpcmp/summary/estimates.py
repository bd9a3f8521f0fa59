"""Metrics of a pair of which Summaries are left: exact where they can be, estimated elsewhere."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter

import numpy as np

from dumpcmp.judge.tolerances import SINGLE
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Metrics
from dumpcmp.nouns.value import Kind, dtype_named
from dumpcmp.summary.sketch import Accumulator, Sketch, alike, cells, spread
from dumpcmp.summary.summary import Summary

_CHUNK = 1 << 18  # elements whose places are looked up together


def estimate(golden: Summary, target: Summary) -> Metrics:
    """How far the target lies from golden, as far as two Summaries tell.

    Equal digests make everything exact. Without sketches `rel_l2` is only the least that the
    norms and means admit, and `confidence` is infinite. What Summaries cannot tell stays NaN.
    """
    if golden.shape != target.shape or golden.whole != target.whole:
        raise CheckError(
            f"golden is a summary of shape {list(golden.shape)} in {list(golden.whole)}, "
            f"the target one of {list(target.shape)} in {list(target.whole)}",
            hint="sketches compare only where both sides lie alike in their whole",
        )
    same_dtype, digests = golden.dtype == target.dtype, _digests(golden, target)
    if not golden.count:
        return Metrics(count=0, equal=same_dtype)
    parts = 2 if dtype_named(golden.dtype).kind is Kind.COMPLEX else 1  # numbers an element
    told = same_dtype and all(digests)
    if told and digests[0] == digests[1]:
        num_finite = golden.num_finite // parts
        return Metrics.of_equals(golden.count // parts, num_finite, golden.extent)
    known = Metrics(
        count=golden.count // parts,
        equal=False,
        num_finite=min(golden.num_finite, target.num_finite) // parts,
        mismatched=int(told),  # of other digests one element at least is the reason
        nonfinite_agree=_odd(golden) == _odd(target),  # as far as counts tell
        golden=golden.extent,
        target=target.extent,
        exact=False,
    )
    if golden.sketch is None or target.sketch is None:
        return _bounded(known, golden, target)
    return _sketched(known, golden, target, *alike(golden.sketch, target.sketch))


def _digests(golden: Summary, target: Summary) -> tuple[str, str]:
    """What both have of one kind, which says whether their bits are the same."""
    if golden.digest and target.digest:
        return golden.digest, target.digest
    return golden.checksum, target.checksum


_odd = attrgetter("num_nan", "num_posinf", "num_neginf")


def _bounded(known: Metrics, golden: Summary, target: Summary) -> Metrics:
    root = math.sqrt(golden.count)
    least = max(abs(target.norm - golden.norm), abs(target.sum - golden.sum) / root)
    if golden.num_finite and target.num_finite:
        least = max(least, abs(target.max - golden.max), abs(target.min - golden.min))
    return known._replace(
        rel_l2=_ratio(least, golden.norm),
        rmse=least / root,
        mismatched=max(known.mismatched, int(least > 0)),
        confidence=math.inf,
    )


def _sketched(
    known: Metrics, golden: Summary, target: Summary, ours: Sketch, theirs: Sketch
) -> Metrics:
    distance = (theirs - ours).norm()
    cosine_distance = _cosine_distance(ours, theirs, golden.norm, target.norm)
    found = locate(golden, target) if distance else None
    gain, error = _gain(ours, theirs, golden.norm)
    booleans = golden.dtype == target.dtype == "bool"  # of which the distance tells how many
    return known._replace(
        cosine=1.0 - cosine_distance,
        cosine_distance=cosine_distance,
        pcc=_pcc(golden, target, ours, theirs),
        rel_l2=_ratio(distance, golden.norm),
        gain=gain,
        gain_score=gain / error if error > 0 else math.nan,
        rmse=distance / math.sqrt(golden.count),
        max_abs_diff=found[1] if found else (math.nan if distance else 0.0),
        worst=found[0] if found else (),
        mismatched=max(known.mismatched, int(distance > 0), round(distance**2) if booleans else 0),
        confidence=spread(ours.size, ours.num_hashes),
    )


def _ratio(distance: float, norm: float) -> float:
    if norm > 0:
        return distance / norm
    return math.inf if distance > 0 else 0.0


def _gain(ours: Sketch, theirs: Sketch, norm: float) -> tuple[float, float]:
    """How much of golden lies in the difference, as a share of golden, and its standard error."""
    if not norm > 0:
        return math.nan, math.nan
    difference = theirs - ours
    gain = float((difference.sums * ours.sums).sum(axis=1).mean()) / norm**2
    rel_l2 = difference.norm() / norm
    return gain, math.sqrt((rel_l2**2 + gain**2) / (ours.size * ours.num_hashes))


def _cosine_distance(ours: Sketch, theirs: Sketch, our_norm: float, their_norm: float) -> float:
    if not (our_norm > 0 and their_norm > 0):
        return math.nan
    return (theirs * (1 / their_norm) - ours * (1 / our_norm)).norm() ** 2 / 2


def _pcc(golden: Summary, target: Summary, ours: Sketch, theirs: Sketch) -> float:
    """The cosine of the centred tensors: a sketch is centred with the sketch of all ones."""
    if not (golden.std > 0 and target.std > 0) or golden.num_finite < golden.count:
        return math.nan
    if math.prod(golden.whole) != golden.count:
        return math.nan  # a shard alone: the ones that it covers are not known here
    ones = sketch_of_ones(golden.count, ours.size, ours.seed, ours.num_hashes)
    scale = math.sqrt(golden.count)
    return 1.0 - _cosine_distance(
        ours - ones * golden.mean,
        theirs - ones * target.mean,
        golden.std * scale,
        target.std * scale,
    )


@lru_cache(256)
def sketch_of_ones(count: int, size: int, seed: int, num_hashes: int) -> Sketch:
    """The Sketch of a tensor of `count` ones."""
    sums, ones = Accumulator(size, seed, num_hashes), np.ones(min(count, _CHUNK))
    for start in range(0, count, _CHUNK):
        sums.add(ones[: count - start], start)
    return sums.sketch()


def locate(golden: Summary, target: Summary) -> tuple[tuple[int, ...], float] | None:
    """Where the largest difference lies and how large it is, if three hashes or more can tell.

    An element's difference is the smallest of its buckets' differences, and nothing unless their
    signs agree.
    """
    if golden.sketch is None or target.sketch is None:
        return None
    ours, theirs = alike(golden.sketch, target.sketch)
    if ours.num_hashes < 3:
        return None
    difference = (theirs - ours).sums
    best, where = 0.0, -1
    for low in range(0, math.prod(golden.whole), _CHUNK):
        indices = np.arange(low, min(low + _CHUNK, math.prod(golden.whole)), dtype=np.int64)
        answers = [
            row[bucket] * sign
            for j, row in enumerate(difference)
            for bucket, sign in (cells(indices, ours.size, ours.seed + j),)
        ]
        least, most = np.minimum.reduce(answers), np.maximum.reduce(answers)
        seen = np.maximum(np.maximum(least, -most), 0.0)
        top = int(seen.argmax())
        if seen[top] > best:
            best, where = float(seen[top]), low + top
    if best < SINGLE * (theirs - ours).norm():
        return None
    return tuple(int(i) for i in np.unravel_index(where, golden.whole)), best


def worst_rows(golden: Summary, target: Summary) -> tuple[int, int, float] | None:
    """The range of rows (all dims but the last, flat) whose segment differs most.

    Gives first row, last row and the segment's difference over the median segment's.
    """
    if not golden.segments or len(golden.segments) != len(target.segments):
        return None
    distances = [(t - g).norm() for g, t in zip(golden.segments, target.segments, strict=True)]
    worst = int(np.argmax(distances))
    if not distances[worst]:
        return None
    row = golden.whole[-1] if len(golden.whole) > 1 else 1
    num_rows, count = math.prod(golden.whole) // row, len(distances)
    middle = float(np.median(distances))
    excess = distances[worst] / middle if middle else math.inf
    return num_rows * worst // count, num_rows * (worst + 1) // count - 1, excess
