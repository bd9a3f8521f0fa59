"""CUDA graphs: which are captured and replayed, and which of their replays nobody sees."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.spoken import counted
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction, patched
from dumpcmp.taps.recording.gradients import Watches
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.reels import Reel

BUDGET_SHARE = 8  # of the device's free memory, one part in so many may hold what replays fill


class Counted:
    """A graph that counts its own replays, on its device, beside those that were heard of.

    The number lies outside of the graph's memory, which graphs may share and write over.
    """

    def __init__(self) -> None:
        """Before a capture: kernels must not be loaded meanwhile."""
        self.num_heard = 0
        self._number = torch.zeros((), dtype=torch.int64, device="cuda")
        self.take_part()
        self._number.zero_()

    def take_part(self) -> None:
        """Be counted by whatever runs, or is captured, now."""
        self._number.add_(1)

    def num_unheard(self) -> int:
        """Replays that ran without anybody hearing of them; waits for the device."""
        return int(self._number) - self.num_heard


class Replays:
    """Hears of every CUDA graph that is captured and replayed, and counts those nobody sees."""

    def __init__(
        self,
        recorder: Recorder,
        watches: Watches,
        budget: int | None = None,
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._compiles = compiles  # whether graphs that call no module may be the compiler's own
        self.num_replays = self.num_unseen = self.num_empty = self.num_middle = 0
        self._recorder, self._watches = recorder, watches
        self._budget = budget
        self._reels = weakref.WeakKeyDictionary[Any, Reel]()
        self._counted = weakref.WeakKeyDictionary[Any, Counted]()
        self._counts: list[Counted] = []  # of graphs that are gone, too

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of what all graphs do while the block runs."""
        kind = torch.cuda.CUDAGraph
        names = {
            "capture_begin": self._begin,
            "capture_end": self._end,
            "replay": self._replay,
        }
        with patched(*((kind, name, _before(ours)) for name, ours in names.items())):
            yield

    def remarks(self) -> list[str]:
        """What the user must hear at the end: what was replayed and not seen."""
        remarks = []
        if unheard := self._num_unheard():
            remarks.append(
                f"{_replays(unheard)} not recorded: the graphs ran more often "
                "than torch.cuda.CUDAGraph.replay was called"
            )
        if self.num_unseen:
            remarks.append(
                f"{_replays(self.num_unseen)} not recorded: the graphs were "
                "captured before this capture began"
            )
        if self.num_middle:
            remarks.append(
                f"{_replays(self.num_middle)} not recorded: the graphs were "
                "captured in the middle of a step"
            )
        if self.num_empty:
            remarks.append(
                f"{_replays(self.num_empty)} not recorded: no module that is "
                "selected was called while the graphs were captured"
            )
        if beyond := sum(reel.num_beyond for reel in self._reels.values()):
            remarks.append(f"{_values(beyond)} not recorded: --graph-budget has no room for them")
        if lost := self._watches.num_lost:
            of_values = "of values inside of CUDA graphs"
            gradients = counted(lost, f"gradient {of_values} is", f"gradients {of_values} are")
            remarks.append(
                f"{gradients} not recorded: no graph computes them, or one that is replayed before "
                "those of the values"
            )
        if filled := sum(reel.num_filled for reel in self._reels.values()):
            remarks.append(
                f"{_values(filled)} not recorded: the graphs chose rows or "
                "took Summaries of whole buckets; capture them inside of dumpcmp.padded, too"
            )
        return remarks

    def facts(self) -> dict[str, Any]:
        """What run.json says of graphs, where there were any."""
        if not self.num_replays and not self._num_unheard():
            return {}
        unseen = self.num_unseen + self.num_middle + self._num_unheard()
        return {"replays": self.num_replays, "unseen_replays": unseen}

    def _begin(self, original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if recorder.is_inert or recorder.reel is not None:
            return original(graph, *args, **kwargs)
        if settle := getattr(recorder.sink, "settle", None):
            settle()  # other threads must not ask the device for anything meanwhile
        recorder.reel = self._reels[graph] = reel = Reel(
            recorder, self._watches, self._affordable()
        )
        if self._counts_itself():
            with DisableTorchFunction(), DisableTorchDispatch():
                self._counted[graph] = Counted()
        reel.begin()
        try:
            result = original(graph, *args, **kwargs)
        except BaseException:
            self._stop(graph)
            raise
        self._count(graph)
        return result

    def _counts_itself(self) -> bool:
        """Whether a graph may count its replays: the compiler accounts for all memory of its."""
        return torch.cuda.is_available() and not self._compiles()

    def _count(self, graph: Any) -> None:
        """Have `graph` count its replays, now that its capture has begun."""
        if (counted := self._counted.get(graph)) is not None:
            with DisableTorchFunction(), DisableTorchDispatch():
                counted.take_part()
            self._counts.append(counted)

    def _num_unheard(self) -> int:
        return sum(max(0, counted.num_unheard()) for counted in self._counts)

    def _end(self, original: Callable[..., Any], graph: Any) -> Any:
        self._stop(graph)
        return original(graph)

    def _stop(self, graph: Any) -> None:
        reel = self._reels.get(graph)
        if reel is not None and reel is self._recorder.reel:
            reel.end()
            self._recorder.reel = None

    def _replay(self, original: Callable[..., Any], graph: Any) -> Any:
        recorder, reel = self._recorder, self._reels.get(graph)
        if recorder.is_inert:
            return self._heard(original, graph)
        self.num_replays += 1
        if reel is None:
            self.num_unseen += 1
        elif reel.is_empty:
            self.num_middle += bool(reel.num_middle)
            self.num_empty += not (reel.num_middle or self._compiles())
        active = recorder.active()
        with HOLD, recorder.lock, DisableTorchFunction(), DisableTorchDispatch():
            if reel is not None:
                reel.announce(active)
        result = self._heard(original, graph)
        with HOLD, recorder.lock, DisableTorchFunction(), DisableTorchDispatch():
            for step in self._watches.steps() if active is None else active.all_steps():
                step.forget()  # what the graph wrote to, which torch does not count
            if reel is not None:
                reel.play()
        return result

    def _heard(self, original: Callable[..., Any], graph: Any) -> Any:
        result = original(graph)
        if (counted := self._counted.get(graph)) is not None:
            counted.num_heard += 1
        return result

    def _affordable(self) -> int:
        if self._budget is not None:
            return self._budget
        return int(torch.cuda.mem_get_info()[0]) // BUDGET_SHARE


def _replays(count: int) -> str:
    return counted(count, "replay of CUDA graphs is", "replays of CUDA graphs are")


def _values(count: int) -> str:
    return counted(count, "value inside of CUDA graphs is", "values inside of CUDA graphs are")


def _before(ours: Callable[..., Any]) -> Callable[[Any], Any]:
    """What has `ours` called for a method, and gives it that first."""

    def change(original: Any) -> Any:
        def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
            return ours(original, graph, *args, **kwargs)

        return method

    return change
