"""Log probabilities out of an archive: from the logits and the token ids of a model's calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.reader import Archive
from dumpcmp.logprobs.sequences import Logprobs, ScoredSequence, Tokens
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.value import DTYPES, Kind

_IDS = ("input.input_ids", "input.tokens", "input.0")
_MASK = "input.attention_mask"
_HINT = (
    "record the root's inputs and outputs: dumpcmp dump --layer '<root>', with --keep full; of a "
    "model that keeps the last logits alone, those of one token a step"
)

Logits = NDArray[Any]


@dataclass(slots=True)
class _Growing:
    """The samples of one batch, while steps of decoding add tokens to them."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    last: list[Logprobs | None]  # what the model said of the next token of each


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What one call of the model was given and gave."""

    tokens: Tokens  # [batch, length]
    logits: Logits  # [batch, length or fewer, vocabulary]: of the last ones
    is_real: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


def of_archive(path: Path, op: str | None) -> Iterator[ScoredSequence]:
    """The sequences that a recorded model scored: whole ones, or as decoding grew them.

    `op` names the op whose output.0 are logits, where that is not the root.
    """
    archive = Archive(path)
    groups: list[_Growing] = []
    for model in archive.models:
        for step in archive.steps(model):
            called = _called(archive, model, step, op)
            if called is not None:
                _take(called, groups)
    if not groups:
        raise ArchiveError(f"{path} has no token ids beside logits", hint=_HINT)
    for number, group in enumerate(groups):
        for row, tokens in enumerate(group.tokens):
            yield ScoredSequence(
                number, str(row), np.array(tokens, np.int64), np.array(group.logprobs[row])
            )


def _called(archive: Archive, model: str, step: int, op: str | None) -> ModelCall | None:
    ids = next((key for slot in _IDS if (key := Key(model, step, ROOT, 0, slot)) in archive), None)
    if ids is None or not _is(archive[ids], Kind.INT, 2):
        return None
    tokens = archive.load(archive[ids]).numbers()
    logits = next(_logits(archive, model, step, op, tokens.shape[0]), None)
    if logits is None or logits.shape[1] > tokens.shape[1]:
        return None
    mask = Key(model, step, ROOT, 0, _MASK)
    is_real = np.ones(tokens.shape, np.bool_)
    if mask in archive and _is(archive[mask], Kind.INT, 2):
        is_real = archive.load(archive[mask]).numbers()[:, -tokens.shape[1] :] != 0
    return ModelCall(tokens, logits, is_real)


def _logits(
    archive: Archive, model: str, step: int, op: str | None, num_rows: int
) -> Iterator[Logits]:
    for key in archive.keys_of(model, step, op or ROOT):
        record = archive[key]
        if key.slot.is_output and _is(record, Kind.FLOAT, 3) and record.shape[0] == num_rows:
            yield archive.load(record).numbers()


def _is(record: Record, kind: Kind, ndim: int) -> bool:
    dtype = DTYPES.get(record.dtype)
    return record.kept is Kept.FULL and len(record.shape) == ndim and dtype is not None and (
        dtype.kind is kind
    )  # fmt: skip


def _take(called: ModelCall, groups: list[_Growing]) -> None:
    """Add a call to the batch that it goes on with, or begin another."""
    batch, length = called.tokens.shape
    goes_on = length == 1 and groups and len(groups[-1].tokens) == batch
    if not goes_on:
        empty: list[Logprobs | None] = [None] * batch
        groups.append(_Growing([[] for _ in range(batch)], [[] for _ in range(batch)], empty))
    group, first = groups[-1], length - called.logits.shape[1]
    for row in range(batch):
        for at in np.flatnonzero(called.is_real[row]):
            token = int(called.tokens[row, at])
            said = group.last[row]
            known = said is not None and 0 <= token < said.size
            group.logprobs[row].append(float(said[token]) if known else np.nan)  # type: ignore[index]
            group.tokens[row].append(token)
            is_told = at >= first
            group.last[row] = log_softmax(called.logits[row, at - first]) if is_told else None


def log_softmax(logits: Logits) -> Logprobs:
    """Log probabilities of logits, in float64."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    found: Logprobs = shifted - np.log(np.exp(shifted).sum())
    return found
