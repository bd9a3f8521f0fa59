"""CUDA graphs: what a model computes while one is captured is recorded at each of its replays."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import Call, Kept, Record, Source
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction, patched
from dumpcmp.taps.recording import padding
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.padding import Padding
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.transfers import DeviceSource

BUDGET_SHARE = 8  # of the device's free memory, one part in so many may hold what replays fill
MIDDLE = "a CUDA graph was captured in the middle of this step, so nobody sees what it computes"
ON_HOST = "a CUDA graph does not compute again what lies on the host"
BEYOND = "--graph-budget has no room for it in the CUDA graph"
FILLED = "the CUDA graph chose what is kept of it among rows that only fill its bucket"


class Reel:
    """What ran while a graph was captured: calls, and tensors which each replay fills anew.

    It stands in for the Sink meanwhile. A step that began before the graph is none of its own.
    """

    def __init__(self, recorder: Recorder, budget: int) -> None:
        self.steps: dict[tuple[str, int], Model] = {}  # that began while it ran
        self.num_beyond = 0  # values for which the budget has no room
        self.num_middle = 0  # values of steps that began before it
        self.num_filled = 0  # values of replays that were chosen with what fills a bucket
        self.left = budget
        self._recorder = recorder
        self._events: list[Call | tuple[Record, Tensor | None]] = []
        self._thread = threading.get_ident()
        self._before = recorder.sink, recorder.condense, replace(recorder.counts)

    def begin(self) -> None:
        """Take what comes, in place of the Sink: whole, or what the graph can choose of it."""
        recorder = self._recorder
        is_middle = recorder.active() is not None  # of what comes then nothing is kept
        copies_whole = is_middle or padding.in_force() is not None
        recorder.sink, recorder.condense = self, None if copies_whole else recorder.condense_taped
        recorder.remembers = not is_middle

    def end(self) -> None:
        """Give the Sink its place back; what was captured has not run, and is no step."""
        recorder = self._recorder
        recorder.sink, recorder.condense, recorder.counts = self._before
        recorder.remembers = True
        for (_, number), model in reversed(self.steps.items()):
            model.num_steps = min(model.num_steps, number)

    def call(self, call: Call) -> None:
        if self._is_own(call.model, call.step):
            self._events.append(call)
        else:
            self._before[0].call(call)

    def put(self, record: Record, source: Source | None) -> None:
        key = record.key
        if not self._is_own(key.model, key.step):
            if source is not None and self._is_taped():
                record, source = _without(record, MIDDLE), None
                self.num_middle += 1
            self._before[0].put(record, source)
        elif source is None:
            self._events.append((record, None))
        elif not isinstance(source, DeviceSource):
            self._events.append((_without(record, ON_HOST), None))
        elif source.nbytes > self.left:
            self.num_beyond += 1
            self._events.append((_without(record, BEYOND), None))
        else:
            self.left -= source.nbytes
            is_own = record.stored is not None  # what was chosen is nobody else's
            self._events.append((record, source.tensor if is_own else source.tensor.clone()))

    def text(self, model: str, name: str, text: str) -> None:
        self._before[0].text(model, name, text)

    def _is_taped(self) -> bool:
        """Whether what runs on this thread now goes into the graph: a backward has its own."""
        return threading.get_ident() == self._thread or torch.cuda.is_current_stream_capturing()

    def _is_own(self, model: str, step: int) -> bool:
        return (model, step) in self.steps and threading.get_ident() == self._thread

    def play(self, active: Step | None) -> None:
        """Record what the current stream has begun to replay: as steps of their own.

        If a step is `active` that calls the very module which the graph was captured from, it is
        a part of that step.
        """
        spots = {own: self._spot(*own, active) for own in self.steps}
        for event in self._events:
            if isinstance(event, Call):
                if (spot := spots[event.model, event.step]) is not None:
                    self._call(event, spot)
            elif (spot := spots[event[0].key.model, event[0].key.step]) is not None:
                self._put(*event, spot)
        for own, spot in spots.items():
            if spot is not None and spot.is_new:
                self._recorder.end_replay(self.steps[own], spot.step)

    def _spot(self, name: str, step: int, active: Step | None) -> Spot | None:
        """Where a replay's step belongs; None where it is not selected."""
        recorder, model = self._recorder, self.steps[name, step]
        path = active.model.paths.get(id(model.root)) if active else None
        if active is not None and path is not None:
            return Spot(active.model.name, active.number, path, active.next_order)
        number = model.next_step()
        recorder.num_steps = max(recorder.num_steps, model.num_steps)
        if not recorder.tap.selects_step(number):
            return None
        recorder.counts.steps += 1
        return Spot(name, number, None, itertools.count().__next__)

    def _call(self, call: Call, spot: Spot) -> None:
        op = spot.op(call.op)
        if spot.knows(call.op):
            return
        order = spot.orders[call.order] = spot.next_order()
        self._recorder.ops.add(op)
        self._recorder.call(replace(call, model=spot.model, step=spot.step, op=Op(op), order=order))

    def _put(self, record: Record, tensor: Tensor | None, spot: Spot) -> None:
        recorder = self._recorder
        if spot.knows(record.key.op):
            return
        key, same_as = spot.key(record.key), record.same_as
        same_as = None if same_as is None else spot.key(same_as)
        record = replace(
            record, key=key, same_as=same_as, order=spot.orders.get(record.order, record.order)
        )
        if (filled := padding.in_force()) is not None:
            record, tensor = self._cut(record, tensor, filled)
        recorder.counts.values += 1
        recorder.counts.links += same_as is not None
        if tensor is None:
            recorder.sink.put(record, None)
            return
        condense = recorder.condense if record.stored is None else None
        condensed = condense and condense(key, tensor, record.layout)
        source: Source = DeviceSource(tensor, recorder.stagings)
        if condensed is not None:
            record = replace(record, kept=Kept.SUMMARY, stored=condensed.stored)
            source = condensed.source or DeviceSource(condensed.numbers, recorder.stagings, True)
        recorder.counts.nbytes += source.nbytes
        recorder.sink.put(record, source)

    def _cut(
        self, record: Record, tensor: Tensor | None, filled: Padding
    ) -> tuple[Record, Tensor | None]:
        """What is real of a value in a bucket."""
        dim = filled.dim_in(record.shape)
        if dim is None:
            return record, tensor
        shape = list(record.shape)
        shape[dim] = filled.rows
        record = replace(record, shape=tuple(shape))
        if record.stored is not None:
            self.num_filled += 1
            return _without(record, FILLED), None
        return record, None if tensor is None else tensor.narrow(dim, 0, filled.rows).contiguous()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in the archive a replayed step goes: into a step at `path` of another, or a new one."""

    model: str
    step: int
    path: str | None  # of the module in a step that is active; None: a step of its own
    next_order: Callable[[], int]
    orders: dict[int, int] = field(default_factory=dict)  # that calls have, by those they had

    @property
    def is_new(self) -> bool:
        return self.path is None

    def knows(self, op: str) -> bool:
        """Whether the active step itself records `op`: the call of the module."""
        return self.path is not None and op == ROOT

    def op(self, op: str) -> str:
        """The op of the graph as the model names it."""
        module, slash, function = op.partition("/")
        inner = "" if module == ROOT else module
        return (".".join(filter(None, (self.path, inner))) or ROOT) + slash + function

    def key(self, key: Key) -> Key:
        return replace(key, model=self.model, step=self.step, op=Op(self.op(key.op)))


def _without(record: Record, problem: str) -> Record:
    """`record` of a value of which nothing is kept."""
    return replace(record, kept=Kept.NOTHING, problem=problem, same_as=None, stored=None)


class Counted:
    """A graph that counts its own replays, on its device, beside those that were heard of."""

    def __init__(self) -> None:
        """Take part in the capture that has just begun: memory of the graph's, and a kernel."""
        self.num_heard = 0
        self._number = torch.empty((), dtype=torch.int64, device="cuda")
        self._number.add_(1)

    @staticmethod
    def prepare() -> None:
        """Have the kernel loaded, which may not be while a graph is captured."""
        torch.zeros((), dtype=torch.int64, device="cuda").add_(1)

    def begin(self) -> None:
        """Count from now on: the capture has ended, and nothing was replayed."""
        self._number.zero_()

    def num_unheard(self) -> int:
        """Replays that ran without anybody hearing of them; waits for the device."""
        return int(self._number) - self.num_heard


class Replays:
    """Hears of every CUDA graph that is captured and replayed, and counts those nobody sees."""

    def __init__(
        self,
        recorder: Recorder,
        budget: int | None = None,
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._compiles = compiles  # whether graphs that call no module may be the compiler's own
        self.num_replays = self.num_unseen = self.num_empty = self.num_middle = 0
        self._recorder = recorder
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
                f"{unheard} replays of CUDA graphs are not recorded: the graphs ran more often "
                "than torch.cuda.CUDAGraph.replay was called"
            )
        if self.num_unseen:
            remarks.append(
                f"{self.num_unseen} replays of CUDA graphs are not recorded: the graphs were "
                "captured before this capture began"
            )
        if self.num_middle:
            remarks.append(
                f"{self.num_middle} replays of CUDA graphs are not recorded: the graphs were "
                "captured in the middle of a step"
            )
        if self.num_empty:
            remarks.append(
                f"{self.num_empty} replays of CUDA graphs are not recorded: no module that is "
                "selected was called while the graphs were captured"
            )
        if beyond := sum(reel.num_beyond for reel in self._reels.values()):
            remarks.append(
                f"{beyond} values inside of CUDA graphs are not recorded: --graph-budget has no "
                "room for them"
            )
        if filled := sum(reel.num_filled for reel in self._reels.values()):
            remarks.append(
                f"{filled} values inside of CUDA graphs are not recorded: the graphs chose rows or "
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
        recorder.reel = self._reels[graph] = reel = Reel(recorder, self._affordable())
        if self._counts_itself():
            with DisableTorchFunction(), DisableTorchDispatch():
                Counted.prepare()
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
        """Have `graph` count its replays from its capture on, which has just begun."""
        if self._counts_itself():
            with DisableTorchFunction(), DisableTorchDispatch():
                counted = self._counted[graph] = Counted()
            self._counts.append(counted)

    def _num_unheard(self) -> int:
        return sum(max(0, counted.num_unheard()) for counted in self._counts)

    def _end(self, original: Callable[..., Any], graph: Any) -> Any:
        self._stop(graph)
        result = original(graph)
        if (counted := self._counted.get(graph)) is not None:
            with DisableTorchFunction(), DisableTorchDispatch():
                counted.begin()
        return result

    def _stop(self, graph: Any) -> None:
        reel = self._reels.get(graph)
        if reel is not None and reel is self._recorder.reel:
            reel.end()
            self._recorder.reel = None

    def _replay(self, original: Callable[..., Any], graph: Any) -> Any:
        result = original(graph)
        if (counted := self._counted.get(graph)) is not None:
            counted.num_heard += 1
        if self._recorder.is_inert:
            return result
        self.num_replays += 1
        reel = self._reels.get(graph)
        if reel is None:
            self.num_unseen += 1
        elif not reel.steps and reel.num_middle:
            self.num_middle += 1
        elif not reel.steps:
            self.num_empty += not self._compiles()
        else:
            with HOLD, self._recorder.lock, DisableTorchFunction(), DisableTorchDispatch():
                reel.play(self._recorder.active())
        return result

    def _affordable(self) -> int:
        if self._budget is not None:
            return self._budget
        return int(torch.cuda.mem_get_info()[0]) // BUDGET_SHARE


def _before(ours: Callable[..., Any]) -> Callable[[Any], Any]:
    """What has `ours` called for a method, and gives it that first."""

    def change(original: Any) -> Any:
        def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
            return ours(original, graph, *args, **kwargs)

        return method

    return change
