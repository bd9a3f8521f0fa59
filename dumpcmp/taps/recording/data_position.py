"""Hears of the batches that data loaders hand out, and tells how far they are in an epoch."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dumpcmp.pytorch.names import is_there, private

_DRAWN = "_num_yielded"
_ITERATOR = "torch.utils.data.dataloader:_BaseDataLoaderIter.__init__"


@dataclass(slots=True)
class _Drawing:
    """A loader that is iterated over: what says which samples come, and how many batches came."""

    sampler: weakref.ref[Any]  # of batches, or of samples where a loader has no batches
    iterator: weakref.ref[Any]
    loader: Callable[[], Any]
    batches: int = 0


class _Counter:
    """Stands in for the number of batches that an iterator counts: it is written to with each."""

    def __init__(self, hear: Callable[[Any, int, Any], None]) -> None:
        self._hear = hear

    def __get__(self, iterator: Any, owner: type | None = None) -> Any:
        if iterator is None:
            return self
        try:
            return vars(iterator)[_DRAWN]
        except KeyError:
            raise AttributeError(_DRAWN) from None

    def __set__(self, iterator: Any, number: int) -> None:
        vars(iterator)[_DRAWN] = number
        loader = sys._getframe(1).f_locals.get("loader") if number == 0 else None
        self._hear(iterator, number, loader)


class DataPositions:
    """The positions of all loaders that were drawn from while a capture runs, in order."""

    def __init__(self, num_ranks: int, before_draw: Callable[[], None]) -> None:
        self._num_ranks, self._before_draw = num_ranks, before_draw
        self._drawings: list[_Drawing] = []

    def watched(self) -> AbstractContextManager[None]:
        """Hear of batches while the block runs; no frame stands around what loads them."""
        if not is_there(_ITERATOR):
            return nullcontext()
        return _counted(private(_ITERATOR.rpartition(".")[0]), _Counter(self._drawn))

    def told(self) -> list[tuple[int, dict[str, Any]]]:
        """What is known of the position of each loader, by number."""
        known = ((number, self._told(one)) for number, one in enumerate(self._drawings))
        return [(number, parts) for number, parts in known if parts]

    def _drawn(self, iterator: Any, number: int, loader: Any) -> None:
        """When an iterator begins, or has handed out its batch of this number."""
        if number:
            self._before_draw()
        sampler = iterator._index_sampler
        found = next((one for one in self._drawings if one.sampler() is sampler), None)
        if found is None:
            found = _Drawing(weakref.ref(sampler), weakref.ref(iterator), lambda: None)
            self._drawings.append(found)
        if number == 0:
            found.iterator = weakref.ref(iterator)
            found.loader = weakref.ref(loader) if loader is not None else lambda: None
        found.batches = number

    def _told(self, drawing: _Drawing) -> dict[str, Any]:
        """The samples that are left of the epoch, over all ranks, and what the loader says.

        A run that was resumed behind what it had read has as many left as one that was not. On
        several ranks a sampler must say that it shares its samples among them.
        """
        batches = drawing.sampler()
        if batches is None:
            return {}
        samples = getattr(batches, "sampler", batches)
        replicas = getattr(samples, "num_replicas", 1)
        if not isinstance(replicas, int) or replicas != self._num_ranks:
            return {}
        parts: dict[str, Any] = _left(batches, samples, drawing.batches, replicas)
        if replicas > 1 and getattr(samples, "shuffle", False):
            parts["epoch"] = getattr(samples, "epoch", None)
        loader, is_alive = drawing.loader(), drawing.iterator() is not None
        if is_alive and callable(getattr(loader, "state_dict", None)):
            parts["state"] = loader.state_dict()
        return parts


def _left(batches: Any, samples: Any, number: int, replicas: int) -> dict[str, Any]:
    """How many samples are left, after this number of batches; else how many were drawn."""
    size = getattr(batches, "batch_size", 1) if batches is not samples else 1
    if not isinstance(size, int):
        return {"batches_drawn": number}
    try:
        whole = len(samples)
        is_last = number >= len(batches)
    except TypeError:  # nobody knows how many there are
        return {"samples_drawn": number * size * replicas}
    return {"samples_left": 0 if is_last else (whole - number * size) * replicas}


@contextmanager
def _counted(owner: Any, counter: _Counter) -> Iterator[None]:
    """Have `owner`, which has no such attribute, count by `counter` while the block runs."""
    setattr(owner, _DRAWN, counter)
    try:
        yield
    finally:
        delattr(owner, _DRAWN)
