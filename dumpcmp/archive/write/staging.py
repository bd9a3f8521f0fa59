"""From Records to bytes in the ring: numbers what comes, lays it down as the file will have it."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from typing import Any

from dumpcmp.archive import schema
from dumpcmp.archive.paths import dataset_path
from dumpcmp.archive.schema import ALIGNMENT, MAGIC, MAX_LINKS, call_json, form_key, text_prefix
from dumpcmp.archive.write.drain import GATHER_NBYTES, Drain
from dumpcmp.archive.write.objects import Template, trouble_with
from dumpcmp.archive.write.part import Owner
from dumpcmp.archive.write.plans import CallPlan, Holding, PartPlan, StepPlan, Steps
from dumpcmp.nouns.record import Call, Kept, Record, Source

WIDE_NBYTES = 16 << 20  # a value after which another part goes on, so that threads write at once
MOST_FORMS = 65_536
_ZEROS = bytes(ALIGNMENT)
_VALUE = schema.VALUE
_PACK = schema.HEADER.pack_into
_PACK_SEQUENCE = schema.SEQUENCE.pack_into
_SEQUENCE_AT = schema.SEQUENCE_AT


class Staging:
    """Lays calls and values into the ring of `drain`. Whoever calls holds the drain's lock.

    A record becomes valid in the ring with its sequence number, which is written last.
    """

    def __init__(self, drain: Drain, steps: Steps) -> None:
        self.num_records = self.nbytes = 0
        self._drain, self._steps = drain, steps
        self._ring, self._room = drain.ring, drain.ring.room
        self._sequence = 1
        self._forms: dict[Any, Template] = {}
        self._step: StepPlan | None = None

    def take_call(self, call: Call) -> None:
        """Take a call; the first of its name stays."""
        step = self._step
        if step is None or step.number != call.step or step.model != call.model:
            step = self._step = self._steps.get(call.model, call.step)
        name = (call.op, call.call)
        if name not in step.calls:
            step.calls[name] = planned = CallPlan(call)
            is_due = step.changes_lane or step.plan.full
            self._declare(planned, self._steps.next_plan(step) if is_due else step.plan)

    def take(self, record: Record, source: Source | None) -> None:
        """Take a value: its elements, a link to an earlier value, or why there is neither."""
        key = record.key
        step = self._step
        if step is None or step.number != key.step or step.model != key.model:
            step = self._step = self._steps.get(key.model, key.step)
        is_due = step.changes_lane or step.plan.full
        plan = self._steps.next_plan(step) if is_due else step.plan
        call = step.calls.get((key.op, key.call))
        if call is None or call.plan is not plan:
            call = self._call_in(step, plan, record)
        if key.slot in call.slots:
            record = _renamed(record, call)
        if record.same_as is not None:
            holding = step.holding_of(record.same_as)
            if holding is not None:
                self._take_link(record, plan, call, holding)
                return
            record = _unstorable(record, f"same as {record.same_as}, which is not in the archive")
        self._take_value(record, source, plan, call)
        if source is not None and source.nbytes >= WIDE_NBYTES:
            step.changes_lane = True

    def end_step(self, model: str, number: int) -> None:
        self._step = None
        self._steps.end(model, number)

    def _call_in(self, step: StepPlan, plan: PartPlan, record: Record) -> CallPlan:
        """The call of `record`, declared in the part `plan`; made up if nobody told of it."""
        key = record.key
        call = step.calls.get((key.op, key.call))
        if call is None:
            bare = Call(key.model, key.step, key.op, key.call, record.order)
            call = step.calls[key.op, key.call] = CallPlan(bare)
        if plan in call.earlier:
            call.move_to(plan, call.earlier.pop(plan))
        else:
            self._declare(call, plan)
        return call

    def _take_value(
        self, record: Record, source: Source | None, plan: PartPlan, call: CallPlan
    ) -> None:
        form = self._forms.get(form_key(record)) or self._new_form(record)
        nbytes = form.nbytes
        if nbytes and (source is None or source.nbytes != nbytes):
            problem = "its elements were not given"
            if source is not None:
                problem = f"its shape and type need {nbytes} bytes, but it has {source.nbytes}"
            record = _unstorable(record, problem)
            form, nbytes = self._new_form(record), 0
        number = plan.forms.get(form)
        if number is None:
            number = self._declare_form(form, plan)
        ring, total = self._ring, form.total
        if 2 * total > ring.reach and source is not None and not ring.reach_for(total):
            self._take_large(source, plan, (call.number, form, number, record.order))
        else:
            self._copy(record.order, source, plan, call.number, form, number)
        key, row = record.key, plan.num_rows
        call.slots[key.slot] = (plan, row, key)
        plan.num_rows = row + 1
        plan.nbytes += total
        if plan.nbytes >= plan.most_nbytes or row >= MAX_LINKS:
            plan.full = True
        self.num_records += 1
        self.nbytes += nbytes

    def _copy(
        self, order: int, source: Source | None, plan: PartPlan, call: int, form: Template,
        number: int,
    ) -> None:  # fmt: skip
        """Lay the value into the ring as it will lie in the file, and hand it over.

        This runs for every value: it reads no attribute twice and calls little.
        """
        ring, drain, room = self._ring, self._drain, self._room
        total, nbytes, place = form.total, form.nbytes, ring.head
        if ring.wrapped or not ring.used or total > ring.reach - place or ring.path is None:
            place = self._reserve(total)
        _PACK(
            room, place, MAGIC, 0, plan.nonce, 0, 0, nbytes, _VALUE,
            form.blocks, call, number, plan.num_rows, order,
        )  # fmt: skip
        wait, digest = None, ""
        if nbytes and source is not None:
            if nbytes % ALIGNMENT:
                room[place + total - ALIGNMENT : place + total] = _ZEROS
            start = place + form.prefix_nbytes
            wait = source.copy_into(room[start : start + nbytes])
            if wait is not None:
                room[place : place + 4] = schema.WAITING
                if getattr(wait, "is_prompt", False):
                    wait = drain.arrivals.watch(place, wait)
            else:
                digest = getattr(source, "digest", "")
        _PACK_SEQUENCE(room, place + _SEQUENCE_AT, self._sequence)
        self._sequence += 1
        ring.head += total
        ring.used += total
        drain.pending.append(
            (_VALUE, plan.part, place, total, call, form, number, order, wait, digest)
        )
        if drain.asleep or ring.used > GATHER_NBYTES:
            drain.nudge()

    def _take_large(self, source: Source, plan: PartPlan, owner: Owner) -> None:
        """A value too large for the ring goes straight into the part, while the thread rests."""
        self._drain.wait_until(lambda: self._ring.is_idle)
        if self._drain.error is None:
            with self._drain.working:
                plan.part.append_large(owner, source)
                self._drain.open_parts.add(plan.part)

    def _take_link(self, record: Record, plan: PartPlan, call: CallPlan, to: Holding) -> None:
        form = self._forms.get(form_key(record)) or self._new_form(record)
        number = plan.forms.get(form)
        if number is None:
            number = self._declare_form(form, plan)
        holder, row, first = to
        path = dataset_path(first.op, first.call, first.slot)
        prefix = text_prefix(b"[%d,%d]" % (holder.part.number, row))
        order = record.order
        rest = ((call.number, form, number, order), holder.part, row, path)
        self._lay(schema.LINK, prefix, plan, (call.number, number, plan.num_rows, order), rest)
        call.slots[record.key.slot] = to
        plan.num_rows += 1
        plan.full = plan.full or plan.num_rows > MAX_LINKS
        self.num_records += 1

    def _new_form(self, record: Record) -> Template:
        form = schema.form_of(record)
        if form.kept is not Kept.NOTHING and (trouble := form.problem or trouble_with(form)):
            form = replace(form, kept=Kept.NOTHING, problem=trouble, stored=None)
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        template = self._forms[form_key(record)] = Template(form)
        return template

    def _declare_form(self, form: Template, plan: PartPlan) -> int:
        number = plan.forms[form] = len(plan.forms)
        self._lay(schema.FORM, form.text, plan, (0, number, 0, 0), (form,))
        return number

    def _declare(self, planned: CallPlan, plan: PartPlan) -> None:
        """Give the call a number in the part, and write it down there."""
        planned.move_to(plan, plan.count_call())
        text = call_json(planned.call)
        if len(text) > schema.MAX_TEXT:
            omitted = json.dumps({"omitted": f"{len(planned.call.arguments)} characters"})
            planned.call = replace(planned.call, arguments=omitted)
            text = call_json(planned.call)
        header = (planned.number, 0, 0, planned.call.order)
        self._lay(schema.CALL, text_prefix(text), plan, header, (planned.call, text))

    def _lay(
        self, kind: int, prefix: bytes, plan: PartPlan, numbers: tuple[int, int, int, int],
        rest: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """Put a record that is all prefix into the ring."""
        total = len(prefix)
        place = self._reserve(total)
        self._room[place : place + total] = prefix
        _PACK(self._room, place, MAGIC, 0, plan.nonce, 0, 0, 0, kind, total // ALIGNMENT, *numbers)
        self._publish((kind, plan.part, place, total, *rest))
        plan.nbytes += total

    def _reserve(self, nbytes: int) -> int:
        """A place for `nbytes` in one piece; waits while the ring is full."""
        ring = self._ring
        if ring.path is None:
            self._drain.keep_up(self._sequence)
        if ring.is_idle:
            ring.rewind(self._sequence)
        if ring.is_lent:
            ring.make_room(nbytes)
        place = ring.place_for(nbytes)
        if place == ring.head:
            return place
        if place < 0:
            if not ring.reach_for(nbytes) and nbytes > ring.reach:
                raise OSError(errno.ENOSPC, "no memory for the ring between program and disk")
            self._drain.wait_until(lambda: ring.is_idle or ring.place_for(nbytes) >= 0)
            if self._drain.error is not None:
                raise self._drain.error
            return self._reserve(nbytes)
        self._wrap()
        return place

    def _wrap(self) -> None:
        """Leave a record that says where the next one is, if there is room for it."""
        ring = self._ring
        place, nbytes = ring.head, min(schema.PREFIX_HEADER, ring.capacity - ring.head)
        entry = (schema.WRAP, None, place, nbytes)
        if nbytes:
            _PACK(self._room, place, MAGIC, 0, 0, 0, 0, 0, schema.WRAP, *(0,) * 5)
            self._publish(entry)
        else:
            self._drain.submit(entry)
        ring.wrap()

    def _publish(self, entry: tuple[Any, ...]) -> None:
        """Number the record, which makes it valid in the ring, and hand it to the thread."""
        _PACK_SEQUENCE(self._room, entry[2] + _SEQUENCE_AT, self._sequence)
        self._sequence += 1
        ring, drain, nbytes = self._ring, self._drain, entry[3]
        ring.head += nbytes
        ring.used += nbytes
        drain.pending.append(entry)
        if drain.asleep or ring.used > GATHER_NBYTES:
            drain.nudge()


def _renamed(record: Record, call: CallPlan) -> Record:
    """A second value of the same Key stays in the archive under a name of its own."""
    number = 1
    while (slot := f"{record.key.slot}~{number}") in call.slots:
        number += 1
    return replace(record, key=record.key.site.key(slot))


def _unstorable(record: Record, problem: str) -> Record:
    return replace(record, kept=Kept.NOTHING, problem=problem, same_as=None, stored=None)
