"""What ran while a CUDA graph was captured, recorded at each of its replays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import Call, Kept, Record, Source
from dumpcmp.taps.recording import padding
from dumpcmp.taps.recording.gradients import Watches
from dumpcmp.taps.recording.models import Model, Scope
from dumpcmp.taps.recording.padding import Padding
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.routine import Targets, calls_of
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.transfers import DeviceSource
from dumpcmp.taps.recording.values import Values
from dumpcmp.taps.recording.weighing import weights_of

MIDDLE = "a CUDA graph was captured in the middle of this step, so nobody sees what it computes"
ON_HOST = "a CUDA graph does not compute again what lies on the host"
BEYOND = "--graph-budget has no room for it in the CUDA graph"
FILLED = "the CUDA graph chose what is kept of it among rows that only fill its bucket"
ONE_STEP = frozenset({("", 0)})  # of which a graph has all but who calls it: the path, the call


class Reel:
    """What ran while a graph was captured: calls, and tensors which each replay fills anew.

    It stands in for the Sink meanwhile. Of a step that began before the graph it has what comes on
    its own thread: the graph is a part of that step.
    """

    def __init__(self, recorder: Recorder, watches: Watches, budget: int) -> None:
        self.num_beyond = 0  # values for which the budget has no room
        self.num_middle = 0  # values of steps that began before it and are none of its own
        self.num_filled = 0  # values of replays that were chosen with what fills a bucket
        self.left = budget
        self.takers: dict[tuple[str, int], dict[int, Targets]] = {}  # of parameters, by its steps
        self.spots: ReelSpots = {}  # of the latest replay
        self._recorder, self._watches = recorder, watches
        self._num_steps = recorder.num_steps
        self._steps: dict[tuple[str, int], Model] = {}
        self._parts: set[tuple[str, int]] = set()  # those of which it has but a part
        self._began: set[tuple[str, int]] = set()  # those of them that began while it ran
        self._events: list[Heard | Frame] = []
        self._here = _Returning()
        self._values: dict[tuple[str, int], Values] = {}  # gradients, by the steps they are of
        self._scopes: dict[int, tuple[Scope, Scope]] = {}
        self._thread = threading.get_ident()
        self._before = recorder.sink, recorder.condense, replace(recorder.counts)
        self._rewrites = Rewrites()
        self._ends: list[Callable[[], None]] = []
        self._around: frozenset[tuple[str, int]] = ONE_STEP  # calls that began before it

    @property
    def is_empty(self) -> bool:
        return not self._began and not self._events

    def begin(self) -> None:
        """Take what comes, in place of the Sink: whole, or what the graph can choose of it."""
        recorder, active = self._recorder, self._recorder.active()
        self._ends.append(self._watches.wind(self))
        for model in recorder.known_models():
            self._rewrites.look_at(model)
        is_part = type(active) is Step
        recorder.remembers = is_part or active is None  # no more of a compiled function's step
        copies_whole = padding.in_force() is not None or not recorder.remembers
        recorder.sink, recorder.condense = self, None if copies_whole else recorder.condense_taped
        if active is not None and is_part:
            self._steps[active.model.name, active.number] = active.model
            self._around = frozenset((scope.path, scope.call) for scope in active.scopes.around)
            self._ends.append(active.rehearse())

    def take(self, model: Model, number: int, part: str) -> None:
        """The step `number` of `model`, or of its `part`, has begun while the graph is captured."""
        self._steps[model.name, number] = model
        self._began.add((model.name, number))
        if part:
            self._parts.add((model.name, number))
            self._around |= {(part, 0)}
        self._rewrites.look_at(model)

    def end(self) -> None:
        """Give the Sink its place back; what was captured has not run, and is no step."""
        recorder = self._recorder
        recorder.sink, recorder.condense, recorder.counts = self._before
        recorder.num_steps = self._num_steps
        recorder.remembers = True
        while self._ends:
            self._ends.pop()()
        self._rewrites.end()
        self._values.clear()
        self._scopes.clear()
        for name, number in self._began:
            model = self._steps[name, number]
            model.num_steps = min(model.num_steps, number)

    @contextmanager
    def returning(self, origin: Reel, step: Step) -> Iterator[Values]:
        """What comes on this thread now are gradients, which this graph computes, of `origin`'s.

        They are of `step`, and go to what this gives: its own values know none of a graph's.
        """
        before, self._here.origin = self._here.origin, origin
        of = step.model.name, step.number
        try:
            yield self._values.setdefault(of, Values(self._recorder, *of))
        finally:
            self._here.origin = before

    def scope_beside(self, scope: Scope) -> Scope:
        """Where ops of the backward pass are counted: a step that goes on has `scope` itself."""
        return self._scopes.setdefault(id(scope), (scope, scope.anew()))[1]

    def call(self, call: Call) -> None:
        if self._is_own(call.model, call.step):
            self._events.append(Heard(call, self._here.origin or self))
        else:
            self._before[0].call(call)

    def put(self, record: Record, source: Source | None) -> None:
        key = record.key
        if not self._is_own(key.model, key.step):
            if source is not None and self._is_taped():
                record, source = _without(record, MIDDLE), None
                self.num_middle += 1
            self._before[0].put(record, source)
        else:
            self._events.append(Frame(*self._copied(record, source), self._here.origin or self))

    def _copied(self, record: Record, source: Source | None) -> tuple[Record, Tensor | None]:
        """`record`, and what each replay fills anew of its value."""
        if source is None:
            return record, None
        if not isinstance(source, DeviceSource):
            return _without(record, ON_HOST), None
        if source.nbytes > self.left:
            self.num_beyond += 1
            return _without(record, BEYOND), None
        self.left -= source.nbytes
        is_own = record.stored is not None  # what was chosen is nobody else's
        return record, source.tensor if is_own else source.tensor.clone()

    def text(self, model: str, name: str, text: str) -> None:
        self._before[0].text(model, name, text)

    def _is_taped(self) -> bool:
        """Whether what runs on this thread now goes into the graph: a backward has its own."""
        return threading.get_ident() == self._thread or torch.cuda.is_current_stream_capturing()

    def _is_own(self, model: str, step: int) -> bool:
        if self._here.origin is not None:
            return True
        return (model, step) in self._steps and threading.get_ident() == self._thread

    def announce(self, active: Step | None) -> None:
        """Tell of all calls that a replay is about to make: as steps of their own.

        If a step is `active` that calls the very module which the graph was captured from, or in
        the middle of, they are a part of that step. Weights are recorded now: the graph may write
        to them.
        """
        steps = () if self.is_empty else self._steps
        self.spots = spots = {own: self._spot(*own, active) for own in steps}
        for event in self._events:
            if isinstance(event, Heard) and (spot := event.spot()) is not None:
                spot.announce(event.call)
        for own, spot in spots.items():
            if spot is not None and spot.is_new:
                spot.within.put_rest()
            elif spot is not None:
                spot.hand_on(self.takers.get(own, {}))

    def play(self) -> None:
        """Record what the current stream has begun to replay, which was announced."""
        self._rewrites.tell()
        for event in self._events:
            if isinstance(event, Frame):
                self._play(event)
        for spot in self.spots.values():
            if spot is not None and spot.is_new and not spot.within.tap.backward:
                self._recorder.finish(spot.within)

    def _play(self, frame: Frame) -> None:
        """Record a value in the step of the graph that computes it, or whose gradient it is."""
        key, spots = frame.record.key, frame.origin.spots
        if (key.model, key.step) not in spots:
            self._watches.num_lost += 1
        elif (spot := spots[key.model, key.step]) is not None:
            self._put(frame.record, frame.tensor, spot)

    def _is_backward(self) -> bool:
        """Whether it computes gradients of what another graph computes."""
        return any(each.origin is not self for each in self._events)

    def _spot(self, name: str, step: int, active: Step | None) -> Spot | None:
        """Where a replay's step belongs; None where it is not selected."""
        recorder, model = self._recorder, self._steps[name, step]
        path = active.model.paths.get(id(model.root)) if active else None
        if active is not None and path is not None:
            return Spot(active, path, self._around)
        is_apart = (name, step) not in self._began and self._is_backward()
        if is_apart or (name, step) in self._parts:
            return None
        begun = recorder.begin_replay(model)
        return None if begun is None else Spot(begun, "", self._around, is_new=True)

    def _put(self, record: Record, tensor: Tensor | None, spot: Spot) -> None:
        recorder = self._recorder
        record, tensor = spot.linked(record, tensor)
        key = spot.key(record.key)
        if key is None:
            spot.skipped[record.key] = record, tensor
            return
        call = spot.calls.get(record.order)
        record = replace(record, key=key, order=record.order if call is None else call.order)
        if (filled := padding.in_force()) is not None:
            record, tensor = self._cut(record, tensor, filled)
        recorder.counts.values += 1
        recorder.counts.links += record.same_as is not None
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


class _Returning(threading.local):
    """What computes the values whose gradients come on this thread now, if they do."""

    origin: Reel | None = None


class Heard(NamedTuple):
    """A call that a graph makes."""

    call: Call
    origin: Reel  # in whose step it is

    def spot(self) -> Spot | None:
        """Where it goes at the latest replay of its step; None where that is not recorded."""
        return self.origin.spots.get((self.call.model, self.call.step))


class Frame(NamedTuple):
    """A value of a graph: what is known of it, and memory that each replay fills anew."""

    record: Record
    tensor: Tensor | None
    origin: Reel  # whose values it is of: another's where it is the gradient of one


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in the archive a replayed step goes: at `path` of the step `within`.

    Calls are numbered as its scopes say: after those that ran before, eagerly or replayed.
    """

    within: Step
    path: str
    outside: frozenset[tuple[str, int]]  # calls in the graph that began before it
    is_new: bool = False  # it begins with the replay, and ends there
    calls: dict[int, Call] = field(default_factory=dict)  # by the order that each had
    skipped: dict[Key, tuple[Record, Tensor | None]] = field(default_factory=dict)
    _moved: dict[Key, Key] = field(default_factory=dict)  # who holds what was skipped
    _names: dict[tuple[str, int], tuple[Op, int] | None] = field(default_factory=dict)
    _scopes: dict[tuple[str, int], tuple[Scope, bool]] = field(default_factory=dict)

    def announce(self, call: Call) -> None:
        """Tell of `call` of the graph, which is about to come."""
        step, named = self.within, self.name(call.op, call.call)
        if named is None:
            return
        order, model, (op, number) = step.next_order(), step.model.name, named
        here = replace(call, model=model, step=step.number, op=op, call=number, order=order)
        self.calls[call.order] = here
        step.announce(here)

    def hand_on(self, takers: dict[int, Targets]) -> None:
        """Tell the step around the graph who took parameters: it may see their gradients."""
        if (tables := self.within.watch_tables) is None:
            return
        for number, targets in takers.items():
            own = calls_of(targets, self.within.model.name, self.within.number)
            here = [(self.calls.get(call.order), slot) for call, slot in own]
            tables[1].setdefault(number, []).extend((call, slot) for call, slot in here if call)

    def linked(self, record: Record, tensor: Tensor | None) -> tuple[Record, Tensor | None]:
        """`record` with its link to what is recorded here, or with what it was linked to."""
        origin = record.same_as
        if origin is None:
            return record, tensor
        if (link := self._moved.get(origin) or self.key(origin)) is not None:
            return replace(record, same_as=link), None
        held, tensor = self.skipped[origin]
        if held.same_as is None and (key := self.key(record.key)) is not None:
            self._moved[origin] = key
        kept, stored, problem = held.kept, held.stored, held.problem
        linked = replace(record, same_as=held.same_as, kept=kept, stored=stored, problem=problem)
        return linked, tensor

    def key(self, key: Key) -> Key | None:
        named = self.name(key.op, key.call)
        step = self.within
        return None if named is None else Key(step.model.name, step.number, *named, key.slot)

    def name(self, op: Op, call: int) -> tuple[Op, int] | None:
        """What `call` of `op` in the graph is here; None where that is not recorded from it.

        Nobody wants it, or it is the call of a module around the graph, which is recorded itself.
        """
        if (op, call) not in self._names:
            self._names[op, call] = self._named(op, call)
        return self._names[op, call]

    def _named(self, op: Op, call: int) -> tuple[Op, int] | None:
        path, number, mark = _parts(op)
        scope, is_around = self._scope(path, call if op.is_module else number)
        if op.is_module:
            named = Op((scope.path or ROOT) + mark)
            return None if is_around or not self._selects(named) else (named, scope.call)
        if mark:  # what ran beside the calls of a module has numbers of its own
            return Op(f"{scope.prefix}{mark}/{op.function}"), call
        return scope.count(op.function, self._selects)

    def _scope(self, inner: str, number: int) -> tuple[Scope, bool]:
        """The scope of a module's call in the graph, and whether it was open before the graph."""
        if (inner, number) not in self._scopes:
            path = ".".join(filter(None, (self.path, inner)))
            scopes = self.within.scopes
            around = [scope for scope in scopes.around if scope.path == path]
            is_open = scopes.is_open and bool(around) and (inner, number) in self.outside
            scope = around[0] if is_open else scopes.next_of(path)
            self._scopes[inner, number] = scope, is_open
        return self._scopes[inner, number]

    def _selects(self, op: str) -> bool:
        outlet = self.within.outlet
        outlet.ops.add(op)
        return outlet.tap.selects_op(op)


ReelSpots = dict[tuple[str, int], Spot | None]  # by the steps of a Reel


def _parts(op: Op) -> tuple[str, int, str]:
    """The module's path, which call of it, and the mark of what runs beside its calls."""
    path, *marks = op.scope.split("@")
    number = int(marks.pop(0)) if marks and marks[0].isdecimal() else 0
    return "" if path == ROOT else path, number, "".join(f"@{mark}" for mark in marks)


def _without(record: Record, problem: str) -> Record:
    """`record` of a value of which nothing is kept."""
    return replace(record, kept=Kept.NOTHING, problem=problem, same_as=None, stored=None)


class Rewrites:
    """Parameters and buffers that a graph writes to: its capture counts that, a replay does not."""

    def __init__(self) -> None:
        self._before: dict[Model, dict[tuple[str, str], tuple[int, int | None]]] = {}
        self._found: dict[Model, list[tuple[str, str]]] = {}

    def look_at(self, model: Model) -> None:
        if model not in self._before:
            self._before[model] = _versions(model)

    def end(self) -> None:
        """The graph is captured."""
        for model, before in self._before.items():
            now = _versions(model)
            self._found[model] = [each for each in now if now[each] != before.get(each)]
        self._before.clear()

    def tell(self) -> None:
        """The graph has written to them again."""
        for model, found in self._found.items():
            if found:
                model.forget(found)


def _versions(model: Model) -> dict[tuple[str, str], tuple[int, int | None]]:
    root = model.root
    return {} if root is None else model.versions(weights_of(root, model))
