"""Reads log probabilities: JSON lines and .pt of trainers, answers in OpenAI's form, archives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from dumpcmp.archive.paths import rank_directories
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.importing.foreign import check_regular, in_natural_order
from dumpcmp.importing.torch_file import TorchFile
from dumpcmp.logprobs.archived_logprobs import of_archive
from dumpcmp.logprobs.sequences import (
    UNKNOWN,
    Logprobs,
    ScoredSequence,
    Tokens,
    is_same,
    placed,
)
from dumpcmp.nouns.budgets import LOGPROBS, MOST_TOKENS, Spending
from dumpcmp.nouns.errors import ArchiveError

SUFFIXES = (".jsonl", ".json", ".pt")
_TOKENS = ("token_ids", "tokens", "input_ids")
_TRAINED = ("prev_logprobs", "log_probs", "logprobs")  # of a trainer; golden has these by itself
_ROLLED_OUT = ("generation_logprobs", "rollout_log_probs", "rollout_logprobs")
_MASKS = ("token_loss_mask", "loss_mask")
_NAMES = ("sample_index", "index", "idx", "custom_id", "request_id", "sample", "id")
_STEPS = ("step", "rollout_id")
_NUMBER = re.compile(r"(\d{1,12})(?!.*\d)")
_RANK = re.compile(r"rank[_=-]?\d+", re.I)
_TOKEN_ID = re.compile(r"token_id:(\d{1,18})")
_MOST_ID = (1 << 62) - 1

Parsed = Mapping[str, Any]


def read_logprobs(
    path: str | Path, field: str | None, *, is_golden: bool
) -> tuple[list[ScoredSequence], str]:
    """The sequences at `path`, and which field of them was read.

    `field` names it. Otherwise golden is what the trainer computed and mine what the rollout did,
    where one file has both; else whichever there is.
    """
    root = place(path)
    if isinstance(root, RemotePath):
        root.refresh()
    if root.is_dir() and rank_directories(root):
        return list(of_archive(root, field)), field or "logits"
    files = [root] if root.is_file() else _files_in(root)
    order = (*_TRAINED, *_ROLLED_OUT) if is_golden else (*_ROLLED_OUT, *_TRAINED)
    reader = _Reader((field,) if field else order)
    found = [each for file in files for each in reader.sequences(file)]
    if not found:
        raise ArchiveError(
            f"{root} has no log probabilities",
            hint="give an archive, or .jsonl, .json or .pt files with tokens and log probabilities",
        )
    return _merged(found), reader.used


def _files_in(root: Path) -> list[Path]:
    if not root.is_dir():
        check_regular(root)
        raise ArchiveError(f"{root} is not there", hint="give a file, a directory or an archive")
    names = (
        [*root.store.below(root.key)]
        if isinstance(root, RemotePath)
        else [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    )
    chosen = sorted((n for n in names if n.endswith(SUFFIXES)), key=in_natural_order)
    return [root / name for name in chosen]


def _merged(found: Sequence[ScoredSequence]) -> list[ScoredSequence]:
    """One of each sample: ranks of context parallelism have some of its tokens each."""
    known: dict[tuple[int, str], ScoredSequence] = {}
    for each in found:
        before = known.get(each.name)
        if before is None:
            known[each.name] = each
        elif (joined := _joined(before, each)) is not None:
            known[each.name] = joined
        else:
            raise ArchiveError(
                f"two samples are called {each.sample!r} at step {each.step}",
                hint="give each line an index of its own, or one file a step",
            )
    return list(known.values())


def _joined(one: ScoredSequence, other: ScoredSequence) -> ScoredSequence | None:
    """One sequence of what both tell; None where they tell of other tokens."""
    one, other = sorted((one, other), key=lambda each: -each.tokens.size)
    size = other.tokens.size
    if not is_same(one.tokens[:size], other.tokens).all():
        return None
    tokens, logprobs = one.tokens.copy(), one.logprobs.copy()
    tokens[:size] = np.where(tokens[:size] == UNKNOWN, other.tokens, tokens[:size])
    logprobs[:size] = np.where(np.isnan(logprobs[:size]), other.logprobs, logprobs[:size])
    return ScoredSequence(one.step, one.sample, tokens, logprobs)


class _Reader:
    """Reads files of one side, and remembers which field they have."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self.used = ""

    def sequences(self, path: Path) -> Iterator[ScoredSequence]:
        """The sequences of one file."""
        step = _step_of(path)
        for number, entry in enumerate(_entries(path)):
            try:
                yield from self._of(entry, step, number)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise ArchiveError(
                    f"{path}: sample {number}: {_told(error)}",
                    hint="docs/how-to/compare-log-probabilities.md lists the forms that are read",
                ) from None

    def _of(self, entry: Parsed, step: int, number: int) -> Iterator[ScoredSequence]:
        entry = entry.get("response", {}).get("body", entry) if "custom_id" in entry else entry
        if "logprob_entries" in entry:
            self.used = "logprob_entries"
            yield from _of_entries(entry, step)
            return
        if "choices" in entry:
            self.used = "choices"
            yield from _of_choices(entry, step, number)
            return
        field = self.used if self.used in entry else self._field(entry)
        tokens = _numbers(entry[_first(entry, _TOKENS)])
        length = entry.get("input_lengths")
        values = _logprobs(entry[field])
        if isinstance(length, int) and 0 < length < tokens.size:  # what follows is padding
            values = values[:length] if values.size == tokens.size else values
            tokens = tokens[:length]
        mask = next((_numbers(entry[m]) for m in _MASKS if m in entry), None)
        mask = mask[: tokens.size] if mask is not None else None
        response = entry.get("response_length")
        found = placed(tokens, values, response if isinstance(response, int) else None, mask)
        named = next((entry[name] for name in _NAMES if name in entry), number)
        own = next((entry[name] for name in _STEPS if isinstance(entry.get(name), int)), step)
        yield ScoredSequence(own, str(named), tokens, found)

    def _field(self, entry: Parsed) -> str:
        for field in self._fields:
            if entry.get(field) is not None:
                self.used = field
                return field
        known = ", ".join(sorted(map(str, entry))[:12])
        raise KeyError(f"it has none of {', '.join(self._fields)}; it has {known}")


def _told(error: Exception) -> str:
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else "a field is missing"
    return str(error)


def _step_of(path: Path) -> int:
    found = _NUMBER.search(_RANK.sub("", path.stem))
    return int(found[1]) if found else 0


def _entries(path: Path) -> Iterator[Parsed]:
    """The samples in a file, as dicts."""
    check_regular(path)
    if path.suffix == ".pt":
        with TorchFile(path) as file:
            yield from _samples(file.tree())
        return
    spending = Spending(LOGPROBS, path, path.stat().st_size)
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        yield from _samples(_parsed(text, path, 1))
        return
    for number, line in enumerate(text.splitlines(), 1):
        spending.node()
        if line.strip():
            yield from _samples(_parsed(line, path, number))


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{path}: line {line} is no JSON: {error}", hint="write one JSON object a line"
        ) from None


def _samples(tree: Any) -> Iterator[Parsed]:
    """A dict, those in a list, or those that a trainer's dump has under ``samples``.

    A dict of lists of the same length, as trainers write a whole batch, is a sample each.
    """
    if isinstance(tree, list):
        for each in tree:
            yield from _samples(each)
    elif isinstance(tree, dict) and isinstance(tree.get("samples"), list):
        shared = {name: tree[name] for name in _STEPS if name in tree}
        yield from ({**shared, **each} for each in tree["samples"] if isinstance(each, dict))
    elif isinstance(tree, dict):
        tokens = tree.get(next((name for name in _TOKENS if name in tree), ""))
        if isinstance(tokens, list) and tokens and isinstance(tokens[0], list):
            for i in range(len(tokens)):
                lists = {n: v[i] for n, v in tree.items() if isinstance(v, list) and len(v) > i}
                yield {n: v for n, v in tree.items() if not isinstance(v, list)} | lists
        else:
            yield tree


def _first(entry: Parsed, names: Sequence[str]) -> str:
    found = next((name for name in names if name in entry), None)
    if found is None:
        raise KeyError(f"it has none of {', '.join(names)}")
    return found


def _numbers(values: Any) -> Tokens:
    plain = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(plain, list) or not all(isinstance(v, int | float) for v in plain):
        raise TypeError(f"{str(plain)[:60]!r} is no list of token ids")
    return np.array(plain, np.int64)


def _logprobs(values: Any) -> Logprobs:
    plain = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(plain, list):
        raise TypeError(f"{str(plain)[:60]!r} is no list of log probabilities")
    return np.array([math.nan if v is None else float(v) for v in plain], np.float64)


def _of_entries(entry: Parsed, step: int) -> Iterator[ScoredSequence]:
    """The form of miles: for each sample of a batch, entries with their global positions."""
    for number, listed in enumerate(entry["logprob_entries"]):
        length = 2 + max((int(one["global_position"]) for one in listed), default=-2)
        if length > MOST_TOKENS:
            raise ValueError(
                f"a position is {length - 2}, and a sequence has {MOST_TOKENS} at most"
            )
        tokens, values = np.full(length, UNKNOWN, np.int64), np.full(length, np.nan)
        for one in listed:
            at = int(one["global_position"]) + 1  # an entry is of the token that comes next
            tokens[at] = int(one["token_id"])
            if one.get("is_valid", True):
                values[at] = float(one["logprob"])
        yield ScoredSequence(step, str(number), tokens, values)


def _of_choices(entry: Parsed, step: int, number: int) -> Iterator[ScoredSequence]:
    """The form of OpenAI's completions and chat, with what vLLM adds: token ids and the prompt."""
    name = next((str(entry[key]) for key in ("sample", "custom_id") if key in entry), str(number))
    for choice in entry["choices"]:
        told = choice.get("logprobs") or {}
        if content := told.get("content"):
            tokens = [one["token"] for one in content]
            values = _logprobs([one["logprob"] for one in content])
        else:
            tokens, values = told["tokens"], _logprobs(told["token_logprobs"])
        ids = _token_ids(choice.get("token_ids") or tokens)
        prompt = choice.get("prompt_token_ids") or entry.get("prompt_token_ids") or []
        before = _of_prompt(choice.get("prompt_logprobs") or entry.get("prompt_logprobs"), prompt)
        index = choice.get("index", 0)
        own = f"{name}.{index}" if len(entry["choices"]) > 1 else name
        whole = np.concatenate([np.array(prompt, np.int64), ids])
        yield ScoredSequence(step, own, whole, np.concatenate([before, values]))


def _of_prompt(listed: Any, prompt: Sequence[int]) -> Logprobs:
    found = np.full(len(prompt), np.nan)
    for at, (token, told) in enumerate(zip(prompt, listed or (), strict=False)):
        one = (told or {}).get(str(token))
        if one is not None:
            found[at] = float(one["logprob"] if isinstance(one, dict) else one)
    return found


def _token_ids(tokens: Sequence[Any]) -> Tokens:
    """Token ids; a token that is told by its text is known by a digest of it."""
    return np.array([_token_id(token) for token in tokens], np.int64)


def _token_id(token: Any) -> int:
    if isinstance(token, int):
        return token
    found = _TOKEN_ID.fullmatch(token)
    return int(found[1]) if found else xxh3_64_intdigest(token) & _MOST_ID
