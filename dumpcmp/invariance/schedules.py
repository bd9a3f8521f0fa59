"""Runs a model on the same rows by other schedules: batches, orders, padding, chunks, threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.taps.recording.row_identity import requests

VARY = ("batch", "order", "padding", "chunk", "decode", "threads", "repeat")
_MASKS = ("attention_mask",)
_POSITIONS = ("position_ids",)
_CACHES = ("past_key_values", "cache")
_NUM_PADDED = 3  # tokens that a sequence is filled up by


@dataclass(frozen=True, slots=True)
class VariedModel:
    """A model and a batch of token ids, and which arguments its forward knows."""

    model: nn.Module
    ids: Tensor  # [batch, length]
    name: str  # of the argument that takes them
    others: Mapping[str, Any] = field(default_factory=dict)  # that are the same for all rows

    @classmethod
    def of(cls, model: nn.Module, inputs: Any) -> VariedModel:
        """What a factory gave: a model and its inputs, of which one has token ids."""
        given = dict(inputs) if isinstance(inputs, Mapping) else {}
        if not given:
            parameters = list(inspect.signature(model.forward).parameters)
            placed = inputs if isinstance(inputs, tuple | list) else (inputs,)
            given = dict(zip(parameters, placed, strict=False))
        for name, value in given.items():
            if isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
                mask = given.get("attention_mask")
                if mask is not None and not bool((mask == 1).all()):
                    raise CaptureError(
                        "the inputs have padding, and padding is one of the things that vary",
                        hint="give a batch of sequences of one length, without a mask",
                    )
                layout = (*_MASKS, *_POSITIONS, *_CACHES, "use_cache")
                others = {n: v for n, v in given.items() if n != name and n not in layout}
                return cls(model, value, name, others)
        raise CaptureError(
            "the inputs have no token ids: a tensor of integers [batch, length]",
            hint="have the function return the model and its inputs, such as (model, (input_ids,))",
        )

    def knows(self, names: Sequence[str]) -> str:
        """The first of these arguments that the model's forward has; else empty."""
        parameters = inspect.signature(self.model.forward).parameters
        return next((name for name in names if name in parameters), "")

    def run(
        self, ids: Tensor, names: Sequence[str], mask: Tensor | None = None, cache: Any = None,
        positions: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Call the model with some rows, and give its cache."""
        given = {self.name: ids, **self.others}
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        for told, known in (
            (mask, self.knows(_MASKS)), (positions, self.knows(_POSITIONS)),
            (cache, self.knows(_CACHES)),
        ):  # fmt: skip
            if told is not None and known:
                given[known] = told
        if self.knows(_CACHES) == "past_key_values":
            given["use_cache"] = True
        with torch.no_grad(), requests(*names):
            found = self.model(**given)
        return getattr(found, "past_key_values", None) or _last(found)


def _last(found: Any) -> Any:
    return found[-1] if isinstance(found, tuple) and len(found) > 1 else None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run the rows: what varies, how large it is, and the calls."""

    vary: str
    size: int
    told: str  # for a reader: "batch of 4"
    run: Callable[[], None]


def schedules(subject: VariedModel, vary: Sequence[str]) -> Iterator[Schedule]:
    """The schedules to try, each kind from the smallest size on."""
    for kind in vary:
        yield from _SCHEDULES[kind](subject)


def alone(subject: VariedModel) -> Schedule:
    """Each sequence by itself in one forward: what batches are held against."""
    return Schedule("batch", 1, "each sequence alone", lambda: _in_batches(subject, 1))


def whole(subject: VariedModel) -> Schedule:
    """All sequences in one forward: what all other schedules are held against."""
    return Schedule("", 0, "the whole batch", lambda: _in_order(subject, range(len(subject.ids))))


def lacking(subject: VariedModel, kind: str) -> str:
    """Why a kind of schedule cannot be run; empty if it can."""
    if kind in ("batch", "order") and len(subject.ids) < 2:
        return "the batch has one sequence"
    if kind in ("chunk", "decode") and not subject.knows(_CACHES):
        return f"the model's forward has no argument {' or '.join(_CACHES)}"
    if kind in ("chunk", "decode") and subject.ids.shape[1] < 2:
        return "the sequences have one token"
    return ""


def _in_order(subject: VariedModel, order: Sequence[int]) -> None:
    ids = subject.ids[list(order)]
    subject.run(ids, [str(i) for i in order])


def _in_batches(subject: VariedModel, size: int) -> None:
    for start in range(0, len(subject.ids), size):
        _in_order(subject, range(start, min(start + size, len(subject.ids))))


def _batches(subject: VariedModel) -> Iterator[Schedule]:
    size = 2
    while size <= len(subject.ids):
        yield Schedule("batch", size, f"batches of {size}", _bound(_in_batches, subject, size))
        size = min(size * 2, len(subject.ids)) if size < len(subject.ids) else size + 1


def _bound(function: Callable[..., None], *args: Any) -> Callable[[], None]:
    return lambda: function(*args)


def _orders(subject: VariedModel) -> Iterator[Schedule]:
    order = range(len(subject.ids) - 1, -1, -1)
    yield Schedule("order", 1, "the batch in reverse order", _bound(_in_order, subject, order))


def _paddings(subject: VariedModel) -> Iterator[Schedule]:
    if subject.knows(_MASKS):
        yield Schedule("padding", 1, f"{_NUM_PADDED} tokens of padding on the left",
                       _bound(_padded, subject, True))  # fmt: skip
    yield Schedule("padding", 2, f"{_NUM_PADDED} tokens of padding on the right",
                   _bound(_padded, subject, False))  # fmt: skip


def _padded(subject: VariedModel, is_left: bool) -> None:
    batch = len(subject.ids)
    filling = torch.zeros(batch, _NUM_PADDED, dtype=subject.ids.dtype, device=subject.ids.device)
    real, none = torch.ones_like(subject.ids), torch.zeros_like(filling)
    pairs = (
        [(filling, none), (subject.ids, real)]
        if is_left
        else [(subject.ids, real), (filling, none)]
    )
    ids, mask = (torch.cat(each, 1) for each in zip(*pairs, strict=True))
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    names = [str(i) for i in range(batch)]
    subject.run(ids, names, mask if subject.knows(_MASKS) else None, None, positions)


def _chunks(subject: VariedModel) -> Iterator[Schedule]:
    size = subject.ids.shape[1] // 2
    while size > 1:
        yield Schedule("chunk", size, f"chunks of {size} tokens", _bound(_chunked, subject, size))
        size //= 2


def _decoding(subject: VariedModel) -> Iterator[Schedule]:
    yield Schedule("decode", 1, "token by token", _bound(_chunked, subject, 1))


def _chunked(subject: VariedModel, size: int) -> None:
    batch, length = subject.ids.shape
    names, cache = [str(i) for i in range(batch)], None
    for start in range(0, length, size):
        end = min(start + size, length)
        positions = torch.arange(start, end, device=subject.ids.device).expand(batch, -1)
        cache = subject.run(subject.ids[:, start:end], names, None, cache, positions)


def _threads(subject: VariedModel) -> Iterator[Schedule]:
    for number in (1, 2, 4):
        if number != torch.get_num_threads():
            yield Schedule("threads", number, f"{number} threads of the CPU",
                           _bound(_with_threads, subject, number))  # fmt: skip


def _with_threads(subject: VariedModel, number: int) -> None:
    with threads(number):
        whole(subject).run()


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have torch compute with so many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _repeats(subject: VariedModel) -> Iterator[Schedule]:
    yield Schedule("repeat", 1, "the same again", whole(subject).run)


_SCHEDULES: dict[str, Callable[[VariedModel], Iterator[Schedule]]] = {
    "batch": _batches, "order": _orders, "padding": _paddings, "chunk": _chunks,
    "decode": _decoding, "threads": _threads, "repeat": _repeats,
}  # fmt: skip
