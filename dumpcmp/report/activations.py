"""What the values of an archive look like, step by step: sizes by position, and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError, SelectionError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import DTYPES, Kind

MOST_OPS, MOST_STEPS = 80, 40
_MOST_SPANS = 64  # of positions
_BINS = 40


def drawn(
    path: str | Path,
    layers: str | Sequence[str] | None,
    tokens: str | Iterable[int] | None,
    slot: str,
) -> dict[str, Any]:
    """What the page is given: ops, steps, and of each value its numbers."""
    archive = Archive(path).select(layers, tokens, slot)
    keys = [key for key in archive if key.call == 0 and (layers or key.op.is_module)]
    if not keys:
        raise SelectionError(
            f"{path} has no value {slot!r} of " + ("these layers" if layers else "a module"),
            hint="dumpcmp show lists what it has; give layers, tokens or slot",
        )
    several = len({key.model for key in keys}) > 1
    names = {key: f"{key.model}: {key.op}" if several else str(key.op) for key in keys}
    ops = _spread(list(dict.fromkeys(names.values())), MOST_OPS)
    steps = _spread(sorted({key.step for key in keys}), MOST_STEPS)
    rows, columns = {op: i for i, op in enumerate(ops)}, {step: i for i, step in enumerate(steps)}
    cells = [
        {"op": rows[name], "step": columns[key.step]} | _told(archive, key)
        for key, name in names.items()
        if name in rows and key.step in columns
    ]
    left_out = [
        *_left_out("op", len(set(names.values())), len(ops), "layers"),
        *_left_out("step", len({key.step for key in keys}), len(steps), "tokens"),
    ]
    return {
        "word": f"{slot} of {path}",
        "ops": ops,
        "steps": steps,
        "cells": cells,
        "notes": left_out,
    }


def _spread(all_of_them: list[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the first and the last among them."""
    if len(all_of_them) <= most:
        return all_of_them
    places = np.linspace(0, len(all_of_them) - 1, most).round().astype(int)
    return [all_of_them[place] for place in places]


def _left_out(what: str, number: int, shown: int, argument: str) -> Iterator[str]:
    if number > shown:
        yield f"{shown} of {counted(number, what)} are shown; {argument}=... chooses others."


def _told(archive: Archive, key: Key) -> dict[str, Any]:
    """The numbers of one value, or why there are none."""
    shards = archive.shards(key)
    record = shards[0]
    told: dict[str, Any] = {"dtype": record.dtype, "shape": list(record.shape)}
    if len({shard.digest or shard.rank for shard in shards}) > 1:
        told["note"] = f"what rank {record.rank} has, one of {len(shards)} ranks"
    problem = _problem(record)
    if not problem:
        try:
            numbers = np.asarray(archive.load(record).numbers(), np.float64)
        except DumpcmpError as error:
            problem = error.message
    return told | ({"problem": problem} if problem else _looks_of(numbers))


def _problem(record: Record) -> str:
    dtype = DTYPES.get(record.dtype)
    if dtype is None or dtype.kind is not Kind.FLOAT:
        return f"{record.dtype} is no float"
    if record.kept is not Kept.FULL:
        return record.problem or f"only {record.sample or 'a Summary'} is kept"
    return ""


def _looks_of(numbers: NDArray[Any]) -> dict[str, Any]:
    finite = numbers[np.isfinite(numbers)]
    told: dict[str, Any] = {
        "odd": int(numbers.size - finite.size), "sizes": _sizes(numbers),
        "low": None, "high": None, "counts": [],
    }  # fmt: skip
    if finite.size:
        counts, edges = np.histogram(finite, bins=_BINS)
        told |= {
            "low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist(),
            "mean": float(finite.mean()), "std": float(finite.std()),
        }  # fmt: skip
    return told


def _sizes(numbers: NDArray[Any]) -> list[float | None]:
    """The root mean square at each position, the last dim but one; none where NaN or Inf are."""
    length = numbers.shape[-2] if numbers.ndim > 1 else 1
    by_position = np.moveaxis(numbers, -2, 0) if numbers.ndim > 1 else numbers[None]
    spans = np.array_split(by_position.reshape(length, -1), min(length, _MOST_SPANS) or 1)
    return [_rms(span) for span in spans]


def _rms(span: NDArray[Any]) -> float | None:
    if not span.size or not np.isfinite(span).all():
        return None
    return float(np.sqrt(np.mean(np.square(span))))
