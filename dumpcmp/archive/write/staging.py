"""From Records to bytes in the ring: numbers what comes, lays it down as the file will have it."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from struct import Struct
from typing import Any

from xxhash import xxh3_128
from xxhash import xxh3_128_hexdigest as _digest

from dumpcmp.archive import schema
from dumpcmp.archive.paths import HEADER_NBYTES
from dumpcmp.archive.schema import ALIGNMENT, MAGIC, MAX_LINKS, form_key
from dumpcmp.archive.write.desk import Desk
from dumpcmp.archive.write.drain import GATHER_NBYTES, Drain
from dumpcmp.archive.write.objects import CallText, Template, trouble_with
from dumpcmp.archive.write.part import Owner
from dumpcmp.archive.write.plans import CallPlan, Holding, PartPlan, StepPlan, Steps
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Phase, Record, Source, Where

WIDE_NBYTES = 16 << 20  # a value after which another part goes on, so that threads write at once
MOST_FORMS = 65_536
_ZEROS = bytes(ALIGNMENT)
_VALUE = schema.VALUE
_PACK = schema.HEADER.pack_into
_PACK_SEQUENCE = schema.SEQUENCE.pack_into
_SEQUENCE_AT = schema.SEQUENCE_AT
_LINK = schema.LINK
_LINK_NBYTES = schema.PREFIX_HEADER + ALIGNMENT
_PACK_LINK = Struct(f"{schema.HEADER.format}{ALIGNMENT}s").pack_into
_MOST_TEXTS = 16_384


# What the desk asks of each record, besides what decides its form.
_OF_KEY = ("model", "step", "op", "call", "slot")
_OF_RECORD = ("key", "order", "kept", "same_as")
_told_of = attrgetter(*(name for name in schema.CALL_FIELDS if name != "phase"))


class Staging(Desk):
    """Lays calls and values into the ring of `drain`. Whoever calls holds the drain's lock.

    A record becomes valid in the ring with its sequence number, which is written last. `others`
    say whether somebody holds a lock besides the drain's.
    """

    def __init__(self, drain: Drain, steps: Steps, *others: Callable[[], bool]) -> None:
        self.num_records = self.nbytes = 0
        self.is_open = False  # in private memory it stays so
        self._drain, self._steps = drain, steps
        self._ring, self._room = drain.ring, drain.ring.room
        self._forms: dict[Any, Template] = {}
        self._texts: dict[tuple[Any, ...], CallText] = {}
        self.step: StepPlan | None = None
        locks = (*others, drain.lock.locked)
        if self._ring.path is not None:  # private memory must not get ahead of the disk
            able = (drain, _digest, xxh3_128, CallPlan, MAX_LINKS, HEADER_NBYTES)
            self.prepare(self._ring, self._room, locks, *able)
            self._know_all()

    def _know_all(self) -> None:
        """Have plain records and calls be known, and laid down at once."""
        names = (_OF_KEY, _OF_RECORD, schema.FORM_FACTS)
        self.know(Record, Key, *names, self._forms, Kept.FULL)
        limits = (_MOST_TEXTS, schema.MAX_CACHED)
        able = (CallText, schema.repeated_json, Phase.FORWARD)
        self.tell(Call, schema.CALL_FIELDS, self._texts, *limits, *able)

    def take_call(self, call: Call) -> None:
        """Take a call; the first of its name stays."""
        step = self.step
        if step is None or step.number != call.step or step.model != call.model:
            step = self.step = self._steps.get(call.model, call.step)
        name = (call.op, call.call)
        if name not in step.calls:
            step.calls[name] = planned = CallPlan(call)
            is_due = step.changes_lane or step.plan.full
            self._declare(planned, self._steps.next_plan(step) if is_due else step.plan)

    def take(self, record: Record, source: Source | None) -> None:
        """Take a value: its elements, a link to an earlier value, or why there is neither."""
        key = record.key
        step = self.step
        if step is None or step.number != key.step or step.model != key.model:
            step = self.step = self._steps.get(key.model, key.step)
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
                form = self._forms.get(form_key(record)) or self._new_form(record)
                self._take_link(key.slot, form, plan, call, holding, record.order)
                return
            record = _unstorable(record, f"same as {record.same_as}, which is not in the archive")
        self._take_value(record, source, plan, call)
        if source is not None and source.nbytes >= WIDE_NBYTES:
            step.changes_lane = True

    def form_of(self, record: Record) -> Template | None:
        """The form of `record`, if it was taken as it was described; see `take_known`."""
        return self._forms.get(form_key(record))

    def take_known(
        self, call: Call, slot: str, form: Template, source: Source | None, same_as: Where | None
    ) -> bool:
        """Take a value of `form`, whose call is declared; False where `take` has more to do."""
        step = self.step
        if step is None or step.number != call.step or step.model != call.model:
            step = self.step = self._steps.get(call.model, call.step)
        plan, planned = step.plan, step.calls.get((call.op, call.call))
        if planned is None or planned.plan is not plan or slot in planned.slots:
            return False
        if step.changes_lane or plan.full:
            return False
        if same_as is not None:
            op, number, name = same_as
            holder = step.calls.get((op, number))
            holding = holder and holder.slots.get(name)
            if holding:
                self._take_link(slot, form, plan, planned, holding, call.order)
            return bool(holding)
        nbytes = form.nbytes
        if source is None or source.nbytes != nbytes or 2 * form.total > self._ring.reach:
            return False
        number = self._number_of(form, plan)
        self._copy(call.order, source, plan, planned.number, form, number)
        self._count(form, plan, planned, slot, (call.op, call.call, slot))
        step.changes_lane = nbytes >= WIDE_NBYTES
        return True

    def lay_known(
        self, call: Call, slot: str, form: Template, source: Source | None, same_as: Where | None
    ) -> bool:
        """Lay down such a value at once, if nothing is out of the ordinary; nobody holds a lock."""
        step = self.step
        if not self.is_open or step is None:
            return False
        if step.number != call.step or step.model != call.model:
            return False
        planned = step.calls.get((call.op, call.call))
        if planned is None:
            return False
        if same_as is not None:
            return self.lay_link(planned, slot, form, call.order, same_as) is not None
        lying = getattr(source, "lying", None)
        if lying is None:
            return False
        where = (call.op, call.call, slot)
        digest = self.lay_value(planned, slot, where, form, call.order, *lying)
        if digest is not None:
            source.digest = digest  # type: ignore[union-attr]
        return digest is not None

    def end_step(self, model: str, number: int) -> None:
        self.step = None
        self._steps.end(model, number)

    def _call_in(self, step: StepPlan, plan: PartPlan, record: Record) -> CallPlan:
        """The call of `record`, declared in the part `plan`; made up if nobody told of it."""
        key = record.key
        call = step.calls.get((key.op, key.call))
        if call is None:
            bare = Call(key.model, key.step, key.op, key.call, record.order)
            call = step.calls[key.op, key.call] = CallPlan(bare)
        if call.earlier and plan in call.earlier:
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
        number = self._number_of(form, plan)
        ring, total = self._ring, form.total
        if 2 * total > ring.reach and source is not None and not ring.reach_for(total):
            self._take_large(source, plan, (call.number, form, number, record.order))
        else:
            self._copy(record.order, source, plan, call.number, form, number)
        key = record.key
        self._count(form, plan, call, key.slot, (key.op, key.call, key.slot))

    def _number_of(self, form: Template, plan: PartPlan) -> int:
        number = plan.forms.get(form)
        return self._declare_form(form, plan) if number is None else number

    def _count(
        self, form: Template, plan: PartPlan, call: CallPlan, slot: str, where: Where
    ) -> None:
        """Count a value that has been laid down as the next row of the part."""
        row = plan.num_rows
        call.slots[slot] = (plan, row, where)
        plan.num_rows = row + 1
        plan.nbytes += form.total
        if plan.nbytes >= plan.most_nbytes or row >= MAX_LINKS:
            plan.full = True
        self.num_records += 1
        self.nbytes += form.nbytes

    def _copy(
        self, order: int, source: Source | None, plan: PartPlan, call: int, form: Template,
        number: int,
    ) -> None:  # fmt: skip
        """Lay the value into the ring as it will lie in the file, and hand it over.

        This runs for every value: it reads no attribute twice and calls little.
        """
        ring, drain, room = self._ring, self._drain, self._room
        total, nbytes, place = form.total, form.nbytes, self._place_for(form.total)
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
        _PACK_SEQUENCE(room, place + _SEQUENCE_AT, self._ring.sequence)
        self._ring.sequence += 1
        ring.head += total
        ring.used += total
        drain.pending.append(
            (_VALUE, plan.part, place, total, call, form, number, order, wait, digest)
        )
        if ring.asleep or ring.used > GATHER_NBYTES:
            drain.nudge()

    def _take_large(self, source: Source, plan: PartPlan, owner: Owner) -> None:
        """A value too large for the ring goes straight into the part, while the thread rests."""
        self._drain.wait_until(lambda: self._ring.is_idle)
        if self._drain.error is None:
            with self._drain.working:
                self._drain.write_straight(plan.part, owner, source)

    def _take_link(
        self, slot: str, form: Template, plan: PartPlan, call: CallPlan, to: Holding, order: int
    ) -> None:
        number = self._number_of(form, plan)
        holder, row, first = to
        room, place = self._room, self._place_for(_LINK_NBYTES)
        _PACK_LINK(
            room, place, MAGIC, 0, plan.nonce, 0, 0, 0, _LINK, _LINK_NBYTES // ALIGNMENT,
            call.number, number, plan.num_rows, order,
            (b"[%d,%d]" % (holder.part.number, row)).ljust(ALIGNMENT),
        )  # fmt: skip
        owner = (call.number, form, number, order)
        self._publish((_LINK, plan.part, place, _LINK_NBYTES, owner, holder.part, row, first))
        call.slots[slot] = to
        plan.nbytes += _LINK_NBYTES
        plan.num_rows += 1
        if plan.nbytes >= plan.most_nbytes or plan.num_rows > MAX_LINKS:
            plan.full = True
        self.num_records += 1

    def _place_for(self, nbytes: int) -> int:
        """A place for `nbytes` in one piece: behind the last record, wherever that is plain."""
        ring = self._ring
        place = ring.head
        if ring.wrapped or not ring.used or nbytes > ring.reach - place or ring.path is None:
            return self._reserve(nbytes)
        return place

    def _new_form(self, record: Record) -> Template:
        form = schema.form_of(record)
        if form.kept is not Kept.NOTHING and (trouble := form.problem or trouble_with(form)):
            form = replace(form, kept=Kept.NOTHING, problem=trouble, stored=None)
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
            if self.is_open:
                self._know_all()
        template = self._forms[form_key(record)] = Template(form)
        return template

    def _declare_form(self, form: Template, plan: PartPlan) -> int:
        number = plan.forms[form] = len(plan.forms)
        self._lay(schema.FORM, form.text, plan, (0, number, 0, 0), (form,))
        return number

    def _declare(self, planned: CallPlan, plan: PartPlan) -> None:
        """Give the call a number in the part, and write it down there."""
        planned.move_to(plan, plan.count_call())
        call = planned.call
        facts = (_told_of(call), call.phase is Phase.FORWARD or call.phase)  # an enum hashes slowly
        told = self._texts.get(facts) or self._told(facts, planned)
        header = (planned.number, 0, 0, call.order)
        self._lay(schema.CALL, told.prefix, plan, header, (planned.call, told))

    def text_of(self, call: Call) -> CallText | None:
        """What is said of `call`, if it is short enough to be kept."""
        facts = (_told_of(call), call.phase is Phase.FORWARD or call.phase)
        told = self._texts.get(facts)
        if told is None and len(call.arguments) <= schema.MAX_CACHED:
            told = self._keep(facts, CallText(call))
        return told if told is not None and len(told.text) <= schema.MAX_CACHED else None

    def _told(self, facts: tuple[Any, ...], planned: CallPlan) -> CallText:
        """What is said of a call; the same comes again in each step."""
        told = CallText(planned.call)
        if len(told.text) > schema.MAX_TEXT:
            omitted = json.dumps({"omitted": f"{len(planned.call.arguments)} characters"})
            planned.call = replace(planned.call, arguments=omitted)
            told = CallText(planned.call)
        return self._keep(facts, told)

    def _keep(self, facts: tuple[Any, ...], told: CallText) -> CallText:
        if len(told.text) <= schema.MAX_CACHED:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            self._texts[facts] = told
        return told

    def _lay(
        self, kind: int, prefix: bytes, plan: PartPlan, numbers: tuple[int, int, int, int],
        rest: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """Put a record that is all prefix into the ring."""
        total = len(prefix)
        place = self._place_for(total)
        self._room[place : place + total] = prefix
        _PACK(self._room, place, MAGIC, 0, plan.nonce, 0, 0, 0, kind, total // ALIGNMENT, *numbers)
        self._publish((kind, plan.part, place, total, *rest))
        plan.nbytes += total

    def _reserve(self, nbytes: int) -> int:
        """A place for `nbytes` in one piece; waits while the ring is full."""
        ring = self._ring
        if ring.path is None:
            self._drain.keep_up(self._ring.sequence)
        if ring.is_idle:
            ring.rewind(self._ring.sequence)
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
        _PACK_SEQUENCE(self._room, entry[2] + _SEQUENCE_AT, self._ring.sequence)
        self._ring.sequence += 1
        ring, drain, nbytes = self._ring, self._drain, entry[3]
        ring.head += nbytes
        ring.used += nbytes
        drain.pending.append(entry)
        if ring.asleep or ring.used > GATHER_NBYTES:
            drain.nudge()


def _renamed(record: Record, call: CallPlan) -> Record:
    """A second value of the same Key stays in the archive under a name of its own."""
    number = 1
    while (slot := f"{record.key.slot}~{number}") in call.slots:
        number += 1
    return replace(record, key=record.key.site.key(slot))


def _unstorable(record: Record, problem: str) -> Record:
    return replace(record, kept=Kept.NOTHING, problem=problem, same_as=None, stored=None)
