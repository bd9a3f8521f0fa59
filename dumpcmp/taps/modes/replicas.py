"""DataParallel: each replica's share of a batch is a microbatch of one step of its module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dumpcmp.nouns.spoken import counted
from dumpcmp.pytorch.names import patched
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.recorder import Recorder


class Replicas(threading.local):
    """Has the replicas of a DataParallel run one after another on the thread that calls it.

    Torch gives each a thread of its own; devices compute side by side all the same. A DataParallel
    is no step itself: its module has one for each replica.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._spreading: nn.DataParallel[Any] | None = None
        self._originals: dict[int, nn.Module] = {}  # by what is called in their place now

    @contextmanager
    def spreading(self, parallel: nn.DataParallel[Any]) -> Iterator[None]:
        """What `parallel` calls while the block runs stands for its module."""
        before = self._spreading, self._originals
        self._spreading, self._originals = parallel, {id(parallel.module): parallel.module}
        try:
            yield
        finally:
            self._spreading, self._originals = before

    def has(self, module: nn.Module) -> bool:
        """Whether `module` stands for one that is captured."""
        return id(module) in self._originals

    def original_of(self, module: nn.Module) -> nn.Module:
        """Whom `module` stands for; itself, if it is no replica."""
        return self._originals.get(id(module), module)

    def apply(
        self, parallel: Any, replicas: Sequence[nn.Module], inputs: Any, kwargs: Any
    ) -> list[Any]:
        """Run `replicas`, each on its share of the batch and its device, in their order."""
        results = []
        for n, replica in enumerate(replicas):
            one = slice(n, n + 1)
            given = [replica], inputs[one], kwargs[one], parallel.device_ids[one]
            with (
                self._standing_in(replica, parallel.module),
                distributed.microbatch(n, of=len(replicas)),
            ):
                results += torch.nn.parallel.parallel_apply(*given)
        return results

    def is_spreading(self, parallel: Any) -> bool:
        return self._spreading is parallel

    @contextmanager
    def _standing_in(self, replica: nn.Module, original: nn.Module) -> Iterator[None]:
        self._originals[id(replica)] = original
        try:
            yield
        finally:
            del self._originals[id(replica)]
            self._recorder.model_of(original).learn(original)


class Parallels:
    """Hears of what every DataParallel runs, and counts those inside of other models."""

    def __init__(self, recorder: Recorder) -> None:
        self.replicas = Replicas(recorder)
        self._recorder = recorder
        self._num_inside = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of it while the block runs."""
        with patched((nn.DataParallel, "parallel_apply", self._change)):
            yield

    def remarks(self) -> list[str]:
        """What the user must hear at the end: what ran on other threads, and was not seen."""
        if not self._num_inside:
            return []
        calls = counted(self._num_inside, "call")
        return [
            f"what replicas compute is not recorded in {calls} of a DataParallel inside of a "
            "model: they run on threads of their own; capture the DataParallel itself"
        ]

    def _change(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def parallel_apply(parallel: Any, *args: Any) -> Any:
            if self.replicas.is_spreading(parallel):
                return self.replicas.apply(parallel, *args)
            self._num_inside += self._recorder.active() is not None
            return apply(parallel, *args)

        return parallel_apply
