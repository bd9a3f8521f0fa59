"""The sink of a capture: copies what it receives into a ring that has the file's layout."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dumpcmp.archive import journal
from dumpcmp.archive.directory import RankDirectory, now, part_name, parts_in
from dumpcmp.archive.drain import SEAL, Drain
from dumpcmp.archive.form import Form, FormKey, form_key, trouble_with
from dumpcmp.archive.journal import HEADER, SEQUENCE, SEQUENCE_AT, text_prefix
from dumpcmp.archive.large import put_large
from dumpcmp.archive.names import group_path, link_name
from dumpcmp.archive.part import Part, call_fields
from dumpcmp.archive.remains import RING_PREFIX, process_start
from dumpcmp.archive.ring import Ring
from dumpcmp.archive.schema import (
    ALIGNMENT,
    MAGIC,
    MAX_LINKS,
    MAX_TEXT,
    SCHEMA_VERSION,
    WAITING,
)
from dumpcmp.errors import CaptureWarning
from dumpcmp.record import Call, Kept, Key, Record, Source

RING_NBYTES = 256 << 20
PRIVATE_RING_NBYTES = 8 << 20  # small, so that it is drained within the promised 100 ms
MOST_OPEN_STEPS = 8
MOST_FORMS = 65_536
_ZEROS = bytes(ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a capture has come, for a live line."""

    num_records: int
    nbytes: int
    seconds_waited: float  # for a disk that is slower than the model


@dataclass(slots=True, eq=False)
class _Plan:
    """A part as the producer sees it: what it will hold once the ring is written."""

    part: Part
    nbytes: int = 0
    num_rows: int = 0
    num_calls: int = 0
    forms: dict[Form, int] = field(default_factory=dict)

    def full(self, part_nbytes: int) -> bool:
        return (
            self.nbytes >= part_nbytes
            or self.num_rows >= MAX_LINKS
            or self.num_calls >= MAX_LINKS // 2
        )


@dataclass(slots=True, eq=False)
class _CallPlan:
    """A call of the step: its number in the part that is being written, and where its slots lie."""

    call: Call
    plan: _Plan | None = None
    number: int = 0
    slots: dict[str, tuple[_Plan, int, Key]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Step:
    model: str
    number: int
    directory: Path
    plan: _Plan
    calls: dict[tuple[str, int], _CallPlan] = field(default_factory=dict)


class ArchiveWriter:
    """Writes one rank's part of an archive: a `Sink` that several threads may share.

        with ArchiveWriter("d1", run={"mode": "eager"}) as sink:
            sink.call(call)
            sink.put(record, source)

    Trouble while writing warns once, ends the capture and leaves the program alone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        run: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        part_nbytes: int = 1 << 30,
        ring_nbytes: int = RING_NBYTES,
        shared: bool = True,
    ) -> None:
        self._directory = RankDirectory(Path(path), rank, world_size)
        self._directory.create(overwrite=overwrite)
        self.run: dict[str, Any] = dict(run or {})
        self._part_nbytes = part_nbytes
        self._ring = self._make_ring(ring_nbytes, shared)
        self._drain = Drain(self._ring)
        self._lock = self._drain.lock
        self._steps: OrderedDict[tuple[str, int], _Step] = OrderedDict()
        self._step: _Step | None = None
        self._forms: dict[FormKey, Form] = {}
        self._sequence = 1
        self._num_records = 0
        self._nbytes = 0
        self._error: BaseException | None = None  # the producer's own
        self._told = False
        self._closed = False
        self._facts = self._opening_facts()
        self._directory.write_run(self._facts)
        _LIVE.add(self)
        atexit.register(self.close)
        self._drain.start()

    @staticmethod
    def _make_ring(nbytes: int, shared: bool) -> Ring:
        name = f"{RING_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        if shared and (ring := Ring.shared(nbytes, name)):
            return ring
        return Ring(min(nbytes, PRIVATE_RING_NBYTES))

    def _opening_facts(self) -> dict[str, Any]:
        ring = self._ring.path.name if self._ring.path else None
        pid = os.getpid()
        began = process_start(pid)
        writer = {"host": socket.gethostname(), "pid": pid, "began": began, "ring": ring}
        return {
            "schema": SCHEMA_VERSION,
            "world_size": self._directory.world_size,
            "rank": self._directory.rank,
            "started": now(),
            "ended": None,
            "complete": False,
            "problem": "",
            "num_records": 0,
            "nbytes": 0,
            "writer": writer,
            "run": self.run,
        }

    @property
    def path(self) -> Path:
        """The rank's own directory."""
        return self._directory.path

    @property
    def staging(self) -> memoryview:
        """The ring's memory, for a capture that wants to pin it."""
        return self._ring.room

    @property
    def active(self) -> bool:
        """Whether the sink still takes Records: False after `close` and after trouble."""
        return not (self._closed or self._error or self._drain.error)

    @property
    def progress(self) -> Progress:
        """What has been received so far."""
        return Progress(self._num_records, self._nbytes, self._drain.seconds_waited)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopped = "" if kind is None else f"the program raised {kind.__name__}: {error}"
        self.close(problem=stopped)

    def call(self, call: Call) -> None:
        """Receive a call, before the Records of its values. The first of its name stays."""
        with self._lock:
            if self.active:
                try:
                    self._take_call(call)
                except Exception as error:
                    self._error = error
        self._tell()

    def put(self, record: Record, source: Source | None) -> None:
        """Receive a value; `source` is None for a link (`same_as`) or a `problem`."""
        with self._lock:
            if self.active:
                try:
                    self._take(record, source)
                except Exception as error:
                    self._error = error
        if self._error or self._drain.error:
            self._tell()

    def text(self, model: str, name: str, text: str) -> None:
        """Receive a readable companion of the run, such as a graph as code."""
        with self._lock:
            if self.active:
                try:
                    self._directory.write_text(model, name, text)
                except Exception as error:
                    self._error = error
        self._tell()

    def finish_step(self, model: str, step: int) -> None:
        """Say that nothing more of this step will come, so that its part can be sealed now."""
        with self._lock:
            if self.active and (model, step) in self._steps:
                self._end_step(self._steps.pop((model, step)))

    def close(self, problem: str = "") -> None:
        """Write everything that was received, seal the parts, and say so in run.json."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        _LIVE.discard(self)
        self._drain.stop()
        self._ring.close()
        self._write_end(problem)
        self._tell()

    def _write_end(self, problem: str) -> None:
        problem = self._trouble() or problem
        self._facts |= {
            "ended": now(),
            "complete": not problem,
            "problem": problem,
            "num_records": self._num_records,
            "nbytes": self._nbytes,
            "writer": None,
        }
        try:
            self._directory.write_run(self._facts)
        except OSError as error:
            self._error = self._error or error

    def _trouble(self) -> str:
        error = self._drain.error or self._error
        return f"{type(error).__name__}: {error}" if error else ""

    def _tell(self) -> None:
        """Warn of trouble, once, in the thread of the program that is being captured."""
        if self._told or not (trouble := self._trouble()):
            return
        self._told = True
        warnings.warn(
            f"the capture into {self.path} stopped, and the program goes on: {trouble}\n"
            "  what was written before stays readable; see it with dumpcmp audit",
            CaptureWarning,
            stacklevel=3,
        )

    def _abandon(self) -> None:
        """Become inert: a forked child has neither the thread nor the right to the ring."""
        self._closed = True
        atexit.unregister(self.close)

    def _take_call(self, call: Call) -> None:
        step = self._step_of(call.model, call.step)
        name = (call.op, call.call)
        if name not in step.calls:
            step.calls[name] = planned = _CallPlan(call)
            self._declare(planned, self._plan_of(step))

    def _take(self, record: Record, source: Source | None) -> None:
        key = record.key
        step = self._step
        if step is None or step.number != key.step or step.model != key.model:
            step = self._step_of(key.model, key.step)
        plan = self._plan_of(step)
        call = step.calls.get((key.op, key.call))
        if call is None:
            bare = Call(key.model, key.step, key.op, key.call, record.order)
            call = step.calls[key.op, key.call] = _CallPlan(bare)
        if key.slot in call.slots:
            record = self._renamed(record, call)
            key = record.key
        if call.plan is not plan:
            self._declare(call, plan)
        if record.same_as is not None:
            target = self._find(step, record.same_as)
            if target is not None:
                self._take_link(record, plan, call, target)
                return
            record = _unstorable(record, f"same as {record.same_as}, which is not in the archive")
        self._take_value(record, source, plan, call)

    @staticmethod
    def _renamed(record: Record, call: _CallPlan) -> Record:
        """A second value of the same Key keeps its place in the archive under a name of its own."""
        number = 1
        while (slot := f"{record.key.slot}~{number}") in call.slots:
            number += 1
        return replace(record, key=replace(record.key, slot=slot))

    @staticmethod
    def _find(step: _Step, key: Key) -> tuple[_Plan, int, Key] | None:
        if (key.model, key.step) != (step.model, step.number):
            return None
        call = step.calls.get((key.op, key.call))
        return call.slots.get(key.slot) if call else None

    def _take_value(
        self, record: Record, source: Source | None, plan: _Plan, call: _CallPlan
    ) -> None:
        fields = form_key(record)
        form = self._forms.get(fields)
        if form is None:
            form = self._new_form(record, fields)
        if form.nbytes and (source is None or source.nbytes != form.nbytes):
            record = _unstorable(record, _mismatch(source, form.nbytes))
            form = self._new_form(record, form_key(record))
        number = plan.forms.get(form)
        if number is None:
            number = self._declare_form(form, plan)
        if form.total > self._ring.capacity // 2:
            self._take_large(record, source, plan, call, form, number)
        else:
            self._copy(record, source, plan, call, form, number)
        call.slots[record.key.slot] = plan, plan.num_rows, record.key
        plan.num_rows += 1
        plan.nbytes += form.total
        self._num_records += 1
        self._nbytes += form.nbytes

    def _copy(
        self, record: Record, source: Source | None, plan: _Plan, call: _CallPlan, form: Form,
        number: int,
    ) -> None:  # fmt: skip
        """Lay the record into the ring as it will lie in the file, and hand it over."""
        place = self._reserve(form.total)
        room = self._ring.room
        prefix, nbytes, end = len(form.prefix), form.nbytes, place + form.total
        room[place : place + prefix] = form.prefix
        HEADER.pack_into(
            room, place, MAGIC, 0, plan.part.nonce, 0, 0, nbytes, journal.VALUE,
            prefix // ALIGNMENT, call.number, number, plan.num_rows, record.order,
        )  # fmt: skip
        wait = None
        if nbytes:
            assert source is not None
            if nbytes % ALIGNMENT:
                room[end - ALIGNMENT : end] = _ZEROS
            begin = place + prefix
            wait = source.copy_into(room[begin : begin + nbytes])
            if wait is not None:
                room[place : place + 4] = WAITING
        entry = (
            journal.VALUE, plan.part, place, form.total,
            call.number, form, number, record.order, wait,
        )  # fmt: skip
        self._publish(place, form.total, entry)

    def _take_large(
        self, record: Record, source: Source | None, plan: _Plan, call: _CallPlan, form: Form,
        number: int,
    ) -> None:  # fmt: skip
        """A value too large for the ring goes straight into the part, while the thread rests."""
        assert source is not None
        self._drain.wait_until(lambda: self._ring.head == self._ring.tail)
        if self._drain.error is None:
            with self._drain.working:
                header = (call.number, number, plan.num_rows, record.order)
                put_large(plan.part, form, source, header)

    def _take_link(
        self, record: Record, plan: _Plan, call: _CallPlan, target: tuple[_Plan, int, Key]
    ) -> None:
        fields = form_key(record)
        form = self._forms.get(fields) or self._new_form(record, fields)
        number = plan.forms.get(form)
        if number is None:
            number = self._declare_form(form, plan)
        holder, row, first = target
        path = "/".join((*group_path(first.op, first.call), link_name(first.slot)))
        prefix = text_prefix([holder.part.number, row])
        header = (call.number, number, plan.num_rows, record.order)
        entry = (*header[:1], form, number, record.order, holder.part, row, path)
        self._lay(journal.LINK, prefix, plan, header, entry)
        call.slots[record.key.slot] = target
        plan.num_rows += 1
        self._num_records += 1

    def _new_form(self, record: Record, fields: FormKey) -> Form:
        if record.kept is not Kept.NOTHING and (trouble := record.problem or trouble_with(record)):
            record = _unstorable(record, trouble)
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        form = self._forms[fields] = Form(record)
        return form

    def _declare_form(self, form: Form, plan: _Plan) -> int:
        number = plan.forms[form] = len(plan.forms)
        self._lay(journal.FORM, form.text, plan, (0, number, 0, 0), (form,))
        return number

    def _declare(self, planned: _CallPlan, plan: _Plan) -> None:
        """Give the call a number in the part, and write it down there."""
        planned.plan, planned.number = plan, plan.num_calls
        plan.num_calls += 1
        prefix = text_prefix(call_fields(planned.call))
        if len(prefix) > MAX_TEXT:
            planned.call = replace(planned.call, arguments=_omitted(planned.call.arguments))
            prefix = text_prefix(call_fields(planned.call))
        header = (planned.number, 0, 0, planned.call.order)
        self._lay(journal.CALL, prefix, plan, header, (planned.call,))

    def _lay(
        self,
        kind: int,
        prefix: bytes,
        plan: _Plan,
        numbers: tuple[int, int, int, int],
        rest: tuple[Any, ...],
    ) -> None:
        """Put a record that is all prefix into the ring."""
        total = len(prefix)
        place = self._reserve(total)
        self._ring.room[place : place + total] = prefix
        HEADER.pack_into(
            self._ring.room, place, MAGIC, 0, plan.part.nonce, 0, 0, 0, kind,
            total // ALIGNMENT, *numbers,
        )  # fmt: skip
        self._publish(place, total, (kind, plan.part, place, total, *rest))
        plan.nbytes += total

    def _reserve(self, nbytes: int) -> int:
        """A place for `nbytes` in one piece; waits while the ring is full."""
        ring = self._ring
        if ring.head == ring.tail:
            ring.rewind(self._sequence)
        gap = ring.gap_before(nbytes)
        if ring.head + gap + nbytes - ring.tail > ring.capacity:
            self._drain.wait_until(lambda: ring.fits(gap + nbytes))
        if gap:
            place = ring.head % ring.capacity
            HEADER.pack_into(ring.room, place, MAGIC, 0, 0, 0, 0, gap, journal.WRAP, *(0,) * 5)
            self._publish(place, gap, (journal.WRAP, None, place, gap))
        return ring.head % ring.capacity

    def _publish(self, place: int, nbytes: int, entry: tuple[Any, ...]) -> None:
        """Number the record, which makes it valid in the ring, and hand it to the thread."""
        SEQUENCE.pack_into(self._ring.room, place + SEQUENCE_AT, self._sequence)
        self._sequence += 1
        self._ring.head += nbytes
        self._drain.submit(entry)

    def _step_of(self, model: str, number: int) -> _Step:
        step = self._steps.get((model, number))
        if step is None:
            if len(self._steps) >= MOST_OPEN_STEPS:
                self._end_step(self._steps.popitem(last=False)[1])
            directory = self._directory.step_directory(model, number)
            plan = self._new_plan(directory, model, number)
            step = self._steps[model, number] = _Step(model, number, directory, plan)
        self._steps.move_to_end((model, number))
        self._step = step
        return step

    def _plan_of(self, step: _Step) -> _Plan:
        """The part that the step writes to now: a new one where the last is full."""
        if step.plan.full(self._part_nbytes):
            self._drain.submit((SEAL, step.plan.part))
            step.plan = self._new_plan(step.directory, step.model, step.number)
        return step.plan

    def _new_plan(self, directory: Path, model: str, step: int) -> _Plan:
        number = max(parts_in(directory), default=-1) + 1
        facts = {
            "schema": SCHEMA_VERSION,
            "model": model,
            "step": step,
            "rank": self._directory.rank,
            "world_size": self._directory.world_size,
            "part": number,
        }
        return _Plan(Part(directory / part_name(number), facts))

    def _end_step(self, step: _Step) -> None:
        self._drain.submit((SEAL, step.plan.part))
        if self._step is step:
            self._step = None


def _unstorable(record: Record, problem: str) -> Record:
    return replace(record, kept=Kept.NOTHING, problem=problem, same_as=None, stored=None)


def _mismatch(source: Source | None, nbytes: int) -> str:
    if source is None:
        return "its elements were not given"
    return f"its shape and type need {nbytes} bytes, but it has {source.nbytes}"


def _omitted(arguments: str) -> str:
    return f'{{"omitted": "{len(arguments)} characters"}}'


_LIVE: weakref.WeakSet[ArchiveWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_LIVE):
        writer._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
