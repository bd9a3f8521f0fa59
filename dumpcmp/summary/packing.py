"""How a Summary lies in a part: a row of float64 numbers, the user's own among them, with names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from dumpcmp.nouns.errors import ArchiveError, CheckError, SelectionError
from dumpcmp.nouns.options import load
from dumpcmp.nouns.own_numbers import named
from dumpcmp.nouns.record import Stored
from dumpcmp.nouns.value import Value
from dumpcmp.summary.sketch import VERSION, Floats, Sketch
from dumpcmp.summary.summary import SEGMENT_SIZE, Recipe, Summary

# The numbers in their order; counts are exact up to 2**53. After them lie the digest, the user's
# reductions, the sketch row by row, and the segments' sketches one after another.
COUNTS = ("count", "num_nan", "num_posinf", "num_neginf", "num_zero")
NUMBERS = ("min", "max", "mean", "std", "norm", "sum", "sum_squares")
DIGEST_WORDS = 4  # 32 bits each, the highest first; -1 where no digest was taken
HEAD = len(COUNTS) + len(NUMBERS) + DIGEST_WORDS

ATTRIBUTES = {
    "summary": "version of the summary and its sketch",
    "fields": "names of the leading numbers, in their order",
    "sketch_size": "buckets of one row of the sketch; 0: there is none",
    "sketch_seed": "seed of the sketch's first row; row j has seed + j",
    "sketch_hashes": "rows of the sketch",
    "segments": "number of ranges of rows that have sketches of their own, of 64 buckets",
    "whole": "JSON shape of the tensor whose flat index keys the sketch",
    "reduced": "JSON names of the user's own numbers",
    "reduce_problem": "why the user's reduction gave none",
    "checksum": "checksum of the elements, hexadecimal",
    "digest": "checksum, where the first two words of the digest are that",
}
FIELDS = " ".join((*COUNTS, *NUMBERS, *(f"digest.{word}" for word in range(DIGEST_WORDS))))


def stored_as(
    recipe: Recipe,
    whole: tuple[int, ...],
    reduced: tuple[str, ...] = (),
    reduce_problem: str = "",
) -> Stored:
    """What a Summary of `recipe` looks like in an archive, without its numbers."""
    size = recipe.size * recipe.num_hashes
    size += recipe.segments * SEGMENT_SIZE * recipe.num_hashes if recipe.size else 0
    attributes: list[tuple[str, str | int | float]] = [
        ("summary", VERSION),
        ("fields", FIELDS),
        ("sketch_size", recipe.size),
        ("sketch_seed", recipe.seed),
        ("sketch_hashes", recipe.num_hashes),
        ("segments", recipe.segments if recipe.size else 0),
        ("whole", json.dumps(whole)),
    ]
    if reduced:
        attributes.append(("reduced", json.dumps(reduced)))
    if reduce_problem:
        attributes.append(("reduce_problem", reduce_problem))
    return Stored("float64", (HEAD + len(reduced) + size,), tuple(attributes))


def pack(summary: Summary) -> tuple[Stored, Floats]:
    """`summary` as an archive holds it: what it looks like, and its numbers."""
    names = tuple(summary.reduced)
    stored = stored_as(summary.recipe, summary.whole, names, summary.reduce_problem)
    if summary.checksum:
        told = (*stored.attributes, ("checksum", summary.checksum))
        stored = replace(stored, attributes=told)
    parts = [
        np.array([getattr(summary, name) for name in (*COUNTS, *NUMBERS)], "<f8"),
        np.array(_words(summary.digest), "<f8"),
        np.array([summary.reduced[name] for name in names], "<f8"),
        *(s.sums.reshape(-1) for s in (summary.sketch, *summary.segments) if s is not None),
    ]
    return stored, np.concatenate(parts)


def _words(digest: str) -> list[float]:
    if not digest:
        return [-1.0] * DIGEST_WORDS
    return [float(int(digest[at : at + 8], 16)) for at in range(0, 32, 8)]


def unpack(stored: Stored, numbers: Floats, dtype: str, shape: tuple[int, ...]) -> Summary:
    """The Summary of a tensor of `dtype` and `shape` that `pack` made."""
    try:
        return _unpacked(stored, numbers, dtype, shape)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ArchiveError(
            f"a summary of {dtype} {list(shape)} is damaged: {str(stored.attributes)[:80]}",
            hint="dumpcmp audit says which part of the archive has it",
        ) from None


def _unpacked(stored: Stored, numbers: Floats, dtype: str, shape: tuple[int, ...]) -> Summary:
    told = dict(stored.attributes)
    if told.get("summary") != VERSION:
        raise CheckError(
            f"a summary of version {told.get('summary')} cannot be read; "
            f"this dumpcmp reads version {VERSION}"
        )
    size, seed, rows = (int(told[f"sketch_{n}"]) for n in ("size", "seed", "hashes"))
    names = json.loads(str(told.get("reduced", "[]")))
    if numbers.size != math.prod(stored.shape) or numbers.size < HEAD + len(names):
        raise CheckError(f"a summary holds {numbers.size} numbers, but names {stored.shape}")
    head = dict(zip((*COUNTS, *NUMBERS), numbers.tolist(), strict=False))
    rest = np.array(numbers[HEAD + len(names) :], np.float64)
    sketch, tail = rest[: size * rows], rest[size * rows :]
    words = [int(word) for word in numbers[HEAD - DIGEST_WORDS : HEAD]]
    is_checksum = told.get("digest") == "checksum"
    known: dict[str, Any] = {name: int(head[name]) for name in COUNTS}
    known |= {name: head[name] for name in ("min", "max", "sum", "sum_squares")}
    return Summary(
        dtype=dtype,
        shape=shape,
        digest="" if words[0] < 0 or is_checksum else "".join(f"{word:08x}" for word in words),
        checksum=f"{words[0]:08x}{words[1]:08x}" if is_checksum else str(told.get("checksum", "")),
        sketch=Sketch(sketch.reshape(rows, size), seed) if size else None,
        segments=tuple(Sketch(sums, seed) for sums in tail.reshape(-1, rows, SEGMENT_SIZE) if size),
        whole=tuple(json.loads(str(told["whole"]))),
        reduced=dict(zip(names, numbers[HEAD : HEAD + len(names)].tolist(), strict=True)),
        reduce_problem=str(told.get("reduce_problem", "")),
        **known,
    )


T = TypeVar("T")
# Takes a tensor's numbers, a numpy array or on a device a torch tensor; gives a number, a list of
# numbers, or numbers by name.
Reduction = Callable[[Any], object]


def load_reduction(name: str) -> Reduction:
    """The function that ``pkg.mod:function`` names."""
    found: Reduction = load("--reduce", name)
    if not callable(found):
        raise SelectionError(f"--reduce {name}: it is no function")
    return found


def results(
    reduction: Reduction, numbers: object, kept: Callable[[Any], T]
) -> tuple[dict[str, T], str]:
    """What `reduction` makes of `numbers`, by name and each as `kept` keeps it, or why nothing."""
    try:
        name = str(getattr(reduction, "__name__", "reduced"))
        return {key: kept(number) for key, number in named(name, reduction(numbers)).items()}, ""
    except Exception as error:  # the user's function may raise anything; the summary stands
        return {}, f"{type(error).__name__}: {error}"[:160]


def reduced(summary: Summary, value: Value, reduction: Reduction | None) -> Summary:
    """`summary` with the user's own numbers of `value`, or with why there are none."""
    if reduction is None:
        return summary
    numbers, problem = results(reduction, value.numbers(), float)
    return replace(summary, reduced=numbers, reduce_problem=problem)
