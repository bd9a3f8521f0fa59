"""Use case: the first value of a run that is NaN, and came of values that were not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.value import DTYPES, Kind, widen

_BLOCK = 1 << 20  # elements that are looked at together


def first_nonfinite(path: str | Path) -> Key | None:
    """The first value of the last step with any NaN, in the order of execution.

    A weight comes before all calls, and a call whose inputs have none before one that has them from
    elsewhere. Infinities, which masks hold on purpose, are looked for where nothing is NaN.
    """
    archive = Archive(path)
    steps = sorted(_steps(archive), key=lambda place: -place[1])
    for (model, step), is_bad in product(steps, (np.isnan, np.isinf)):
        bad = list(_bad_keys(archive, model, step, is_bad))
        if bad:
            spoilt = {key.site for key in bad if key.slot.is_input}
            own = [key for key in bad if key.slot.is_output and key.site not in spoilt]
            weights = [key for key in bad if key.slot.is_weight]
            return next(iter([*weights, *_innermost(own), *bad]))
    return None


def _innermost(keys: Sequence[Key]) -> Iterator[Key]:
    """Those of calls that no other one is inside of: a module gives what its functions gave."""
    for key in keys:
        if not any(other.op.is_inside(key.op) for other in keys if key.op.is_module):
            yield key


def _steps(archive: Archive) -> Iterator[tuple[str, int]]:
    for model in archive.models:
        yield from ((model, step) for step in archive.steps(model))


def _bad_keys(archive: Archive, model: str, step: int, is_bad: np.ufunc) -> Iterator[Key]:
    keys = sorted(archive.keys_of(model, step), key=lambda key: archive[key].order)
    for key in keys:
        if any(_has_any(archive, record, is_bad) for record in archive.shards(key)):
            yield key


def _has_any(archive: Archive, record: Record, is_bad: np.ufunc) -> bool:
    dtype = DTYPES.get(record.dtype)
    if record.kept is not Kept.FULL or dtype is None or dtype.kind is not Kind.FLOAT:
        return False
    flat = archive.load(record).bits.reshape(-1)
    return any(
        bool(is_bad(widen(flat[i : i + _BLOCK], dtype)).any()) for i in range(0, flat.size, _BLOCK)
    )
