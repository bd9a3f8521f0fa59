"""One call of a root module: names and numbers its calls, hands on their values and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import Call, Phase, Where
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.calls import arguments_of, current_line, function_arguments, thread_name
from dumpcmp.taps.recording.functions import (
    Function,
    fills,
    generator_for,
    in_order,
    leaves_unwritten,
    needs_care,
)
from dumpcmp.taps.recording.grafts import GRAFTED, Grafts
from dumpcmp.taps.recording.models import Model, Scope, Scopes
from dumpcmp.taps.recording.precision import Precision
from dumpcmp.taps.recording.routine import (
    BackwardRoutine,
    Routine,
    Targets,
    Ticket,
    WatchTables,
    backward_routine_of,
    call_of,
    calls_of,
    routine_of,
)
from dumpcmp.taps.recording.values import Outlet, Shared, Values
from dumpcmp.taps.recording.weighing import Weighing

Asked = list[tuple["Step", Call, str]]  # where a gradient is wanted that a compiled graph computes


class Watcher(Protocol):
    """Records the gradients of a step's values, once they are known."""

    def watch(self, step: Step, call: Call, found: Slots) -> None: ...  # slots of `call`

    def hook(self, step: Step, tensor: Tensor, targets: Targets) -> None: ...  # to fill `targets`

    def watch_parameters(self, step: Step, path: str, module: nn.Module) -> None: ...  # computed

    @property
    def tables(self) -> WatchTables: ...  # what `watch` fills

    def way_back(self, step: Step) -> Any: ...  # what hooks in C, if anything does

    def begin(self, step: Step) -> None: ...  # the backward pass has reached it

    def rehearsing(self, step: Step) -> Watcher: ...  # for what a CUDA graph will compute of it


class Step:
    """One call of a root module. Only its own methods change what it is in the middle of."""

    is_function = False  # of a compiled function: modules that it calls begin their own
    is_silent = False  # records nothing itself

    def __init__(self, outlet: Outlet, model: Model, number: int) -> None:
        self.outlet = outlet
        self.tap = outlet.tap
        self.model = model
        self.number = number
        self.precision: Precision | None = None
        self.grafts: Grafts | None = None
        self.grafted_in: Call | None = None  # the module in the midst of it whose results come
        # from elsewhere: what it calls does not count
        self.routine: Routine | None = None  # knows calls that came before
        self.scopes = Scopes(model.ops, knowns=model.knowns(thread_name()))
        self._phase = Phase.FORWARD
        self._line: str | None = None  # of the graph node that runs now; None: ask the stack
        self.orders: Iterator[int] = itertools.count()
        self.watcher: Watcher | None = None
        # kept only to attribute gradients
        self.calls: dict[tuple[str, int], Call | Ticket] = {}
        self._first_calls: dict[str, Call | Ticket] = {}  # of modules
        self._shared: dict[tuple[Any, ...], Asked] = {}  # what compiled graphs gave
        self.again: Step | None = None  # in which checkpointing runs parts of this one again
        self.values = Values(outlet, model.name, number)
        self.weighing = Weighing(self.values, model.digests)
        self._gradients: BackwardRoutine | Values | None = None  # records them

    def stand_in(self, scope: Scope, line: str | None = None) -> None:
        """What comes next runs in `scope`: a graph says so, and the user's line, of each node."""
        self.scopes.here = scope
        self._line = line

    def run_in(self, precision: Precision) -> None:
        """Have the functions of this step compute in `precision` instead of their own."""
        self.precision = precision
        self.end_routine()

    def graft(self, grafts: Grafts) -> None:
        """Have calls of this step give what `grafts` say in place of their own results."""
        self.grafts = grafts
        self.end_routine()

    def follow_routine(self, call_slowly: Callable[..., Any]) -> None:
        """Know again what steps before did: functions, which a mode is about to show, and modules.

        Calls of modules that are not known go to `call_slowly`.
        """
        if type(self) is Step and self.precision is None and self.grafts is None:
            self.routine = routine_of(self)
            if self.routine is not None:
                self.routine.follow(call_slowly)

    def end_routine(self) -> None:
        """Know none of what comes now."""
        if self.routine is not None:
            self.routine.end()
            self.routine = None

    @contextmanager
    def aside_in(self, scope: Scope, phase: Phase, values: Values | None = None) -> Iterator[None]:
        """Record what runs in the block in `scope`, as part of `phase`, without its gradients.

        It goes to `values`, if they are given, of which the step itself knows nothing.
        """
        before = self.scopes.here, self._phase, self.watcher, self.routine, self.values
        self.scopes.here, self._phase, self.watcher, self.routine = scope, phase, None, None
        self.values = values or self.values
        try:
            yield
        finally:
            self.scopes.here, self._phase, self.watcher, self.routine, self.values = before

    def begin_inner(self, root: nn.Module) -> Step | None:  # noqa: ARG002
        """A step of `root`, which one of this step's graphs computes; only functions have those."""
        return None

    def all_steps(self) -> list[Step]:
        """All that ran in it: itself, and those that began inside of its graphs."""
        return [self]

    def owner_of(self, call: Call) -> Step:  # noqa: ARG002
        """The step that `call` is of: this one, or one that began inside of its graphs."""
        return self

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> Call | Ticket | None:
        """Open the scope of a call of `module`; its Call, with its inputs, where it is selected.

        Where its Routine knows the call, it gives a ticket for it.
        """
        path = self.model.path_of(module, self.scopes.here.path)
        number = self.scopes.open(path).call
        op = self._module_op(path)
        if op is None or self.grafted_in is not None:
            return None
        if self.routine is not None and path not in self.weighing.left:
            ticket: Ticket | None = self.routine.quick.enter(type(module), args, kwargs)
            if ticket is not None:
                self._first_calls.setdefault(op, ticket)
                return ticket
        target = f"{type(module).__module__}.{type(module).__qualname__}"
        found, arguments = arguments_of(args, kwargs, {})
        call = self.call(op, number, target, arguments, current_line())
        self._first_calls.setdefault(op, call)
        if number == 0:
            self._put_weights(call, path)
            if self.watcher is not None:
                self.watcher.watch_parameters(self, path, module)
        self.inputs(call, found)
        if self.grafts is not None and self.grafts.is_whole(self.number, op, number):
            self.grafted_in = call
        return call

    def end_graft(self, call: Call | Ticket | None) -> None:
        """The module of `call` has ended."""
        if call is not None and self.grafted_in is call:
            self.grafted_in = None

    def _module_op(self, path: str) -> Op | None:
        """The op that a call of the module at `path` is; None where it is not selected."""
        mark = self.scopes.mark
        known = self.model.ops.setdefault(mark, {})
        if path not in known:
            op = Op((path or ROOT) + mark)
            self.outlet.ops.add(op)
            known[path] = op if self.tap.selects_op(op) else None
        return known[path]

    def reach(self, path: str) -> None:
        """Functions of the module at `path` come up, which nobody calls as a module."""
        if path in self.weighing.left and self.tap.selects_op(path or ROOT):
            self._put_weights(self.module_call(path or ROOT), path)

    def put_rest(self) -> None:
        """Record the weights of modules that never came up: all others have run."""
        self.end_routine()
        for path in list(self.weighing.left):
            self.reach(path)

    def _put_weights(self, call: Call, path: str) -> None:
        if not self.outlet.is_taped:  # no graph is to weigh again and again; `put_rest` does
            self.weighing.put(call, path)

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """A call of `function` in the present scope with its inputs, where it is selected."""
        counted = self.count(function)
        if counted is None or self.grafted_in is not None:
            return None
        op, number = counted
        args = in_order(function, args)
        found, arguments = function_arguments(args, kwargs, function.positions)
        line = current_line() if self._line is None else self._line
        if self.grafts is not None and self.grafts.hides(self.number, op, number):
            return None
        is_grafted = self.is_grafted(op, number)
        target = GRAFTED if is_grafted else function.target
        call = self.call(op, number, target, arguments, line)
        if self.tap.inputs and not self.outlet.is_taped and function.draws(args, kwargs):
            self.store(call, generator_for(found))
        self.inputs(call, found)
        return call

    def is_grafted(self, op: str, number: int) -> bool:
        """Whether other results stand in place of those of this call."""
        return self.grafts is not None and self.grafts.has(self.number, op, number)

    def count(self, function: Function) -> tuple[str, int] | None:
        """The op that `function` is in the present scope, and the number of this call of it."""
        return self.scopes.here.count(function.name, self._selects)

    def _selects(self, op: str) -> bool:
        if self.is_silent:
            return False
        self.outlet.ops.add(op)
        return self.tap.selects_op(op)

    def call(
        self,
        op: str,
        number: int,
        target: str,
        arguments: str,
        source: str,
        origins: tuple[str, ...] = (),
        kernel: str = "",
    ) -> Call:
        """Number a call and tell the Sink of it."""
        order, phase = self.next_order(), self._phase
        call = Call(
            self.model.name, self.number, op if op.__class__ is Op else Op(op), number, order,
            target, source, phase, arguments, origins, kernel, thread_name(),
        )  # fmt: skip
        if self.watcher is not None:
            self.calls[op, number] = call
        self.outlet.call(call)
        return call

    def rehearse(self) -> Callable[[], None]:
        """What comes next does not compute yet: a CUDA graph is captured in the middle of it.

        It is linked to nothing before, and its gradients are the graph's. What this gives ends
        that: numbers go on as if nothing had come.
        """
        tables: list[dict[Any, Any]] = [self.calls, self._first_calls]
        kept = [(table, dict(table)) for table in tables]
        watcher = self.watcher
        undo = [self.scopes.kept(), self.values.forget()]
        self.watcher = None if watcher is None else watcher.rehearsing(self)

        def end() -> None:
            for each in undo:
                each()
            for table, before in kept:
                table.clear()
                table.update(before)
            self.watcher = watcher

        return end

    def forget(self) -> None:
        """Memory may have been written to, and torch has not counted it: link to nothing before."""
        self.values.forget()
        if self.routine is not None:
            self.routine.forget()

    def announce(self, call: Call) -> None:
        """A CUDA graph that is replayed next makes `call`, as a part of this step."""
        self.outlet.call(call)
        if call.op.is_module:
            self._first_calls.setdefault(call.op, call)
            if call.call == 0:
                self._put_weights(call, "" if call.op == ROOT else call.op.module)

    def next_order(self) -> int:
        """The position in the execution of what comes next."""
        return next(self.orders)

    def module_call(self, op: str) -> Call:
        """The first call of the module `op` in this step, which weights and gradients belong to."""
        first = self._first_calls.get(op)
        if first is None:
            first = self.call(op, 0, "", "", "")
        elif not isinstance(first, Call):
            first = call_of(first, self.model.name, self.number)
        self._first_calls[op] = first
        return first

    def call_named(self, op: str, number: int) -> Call | None:
        """The call of this name, if gradients may belong to it."""
        found = self.calls.get((op, number))
        if found is None or isinstance(found, Call):
            return found
        return call_of(found, self.model.name, self.number)

    def inputs(self, call: Call, found: Slots) -> None:
        """Record the inputs of `call`, and watch for their gradients."""
        if self.tap.inputs:
            self._record(call, found)

    def outputs(self, call: Call, result: object, watches: bool = True) -> None:
        """Record the outputs of `call`, and watch for their gradients where `watches` says so."""
        if self.tap.outputs:
            self._record(call, slots_of("output", result), watches)

    def outputs_of(self, call: Call, result: object, watches: bool, shared: Shared) -> None:
        """The same of outputs that have the memory of an input, and do not count its writes yet."""
        values = self.owner_of(call).values
        values.count_ahead(*shared)
        self.outputs(call, result, watches)
        values.count_ahead(None)

    def rewritten(self, call: Call, tensors: Iterable[Tensor]) -> None:
        """`call` has written to `tensors`, and torch did not count that."""
        for tensor in tensors:
            self.owner_of(call).values.rewritten(tensor)

    def forget_each(self, call: Call, tensors: Iterable[Tensor]) -> None:
        """`call` may have written to `tensors`, uncounted: link to none of them as they were."""
        for tensor in tensors:
            self.owner_of(call).values.forget_one(tensor)

    def leave(self, call: Call | Ticket, result: object) -> None:
        """Record the outputs of a module call."""
        if isinstance(call, Call):
            self.outputs(call, result)
        elif self.routine is not None:
            self.routine.quick.give(call, (), result)
        else:  # the Routine has ended meanwhile
            self.outputs(call_of(call, self.model.name, self.number), result)

    def save(self, name: str, tensor: Tensor) -> None:
        """Record a value that the program names itself, as an op of the present scope."""
        call = self.function(Function(name, target="dumpcmp.save"), (), {})
        if call is not None:
            self._record(call, [("output.0", tensor)])

    def _record(self, call: Call, found: Slots, watches: bool = True) -> None:
        found = distributed.of_model(call.op, found)
        self.store(call, found)
        if watches:
            self.watch(call, found)

    def store(self, call: Call, found: Slots) -> None:
        """Record values of `call`, and no gradients of them."""
        if needs_care(call.target):
            for slot, tensor in found:
                self.put(call, slot, tensor)
        else:
            self.owner_of(call).values.put_each(call, found)

    def put_effect(self, call: Call, found: Slots, late: bool = False) -> None:
        """Record tensors that an effect has of its own, to which nothing is linked later.

        One that comes `late`, when the step is over, is linked to nothing itself: the parts of the
        step may be sealed.
        """
        values = Values(self.outlet, self.model.name, self.number) if late else self.values
        for slot, tensor in found:
            values.put_aside(call, slot, tensor)

    def put_late_weights(self, call: Call, found: Slots) -> None:
        """Record parameters and buffers when the step is over, as much as is kept of those."""
        values = Values(self.outlet, self.model.name, self.number)
        for slot, tensor in found:
            values.put_weight(call, slot, tensor, in_brief=False)

    def put(
        self,
        call: Call,
        slot: str,
        tensor: Tensor,
        same_as: Key | None = None,
        fresh: bool = False,
        seen_in: str = "",
    ) -> Key:
        """Record one value of `call` in the step that owns it; see `Values.put`."""
        owner = self.owner_of(call)
        if owner is not self:
            return owner.put(call, slot, tensor, same_as, fresh, seen_in)
        where: Where | None = None  # links stay within a step, which can be read on its own
        if same_as is not None and (same_as.model, same_as.step) == (self.model.name, self.number):
            where = (same_as.op, same_as.call, same_as.slot)
        is_output = slot.startswith("output")
        unwritten = leaves_unwritten(call.target) and is_output
        if fills(call.target) and is_output:
            self.values.filled(tensor)
        place = self.values.put(call, slot, tensor, where, fresh, seen_in, unwritten)
        return Key(self.model.name, self.number, *place)

    def known_gradients(self) -> tuple[Any, ...] | None:
        """By what gradients whose like came before are recorded at once; None where none are."""
        recording = None if self.is_function else self._recording_gradients()
        if recording is None or isinstance(recording, Values):
            return None
        return *recording.facts, self._first_calls, self.outlet.counts, self.number

    def _recording_gradients(self) -> BackwardRoutine | Values:
        if self._gradients is None:
            is_plain = type(self) is Step and self.precision is None
            self._gradients = (backward_routine_of(self) if is_plain else None) or self.values
        return self._gradients

    def put_at(
        self, targets: Targets, tensor: Tensor, done: int = 0, where: Where | None = None
    ) -> None:
        """Record one value, such as a gradient, at the first of `targets`, and links at others.

        At the first `done` of them it has been recorded already, and lies at `where`.
        """
        if not self.is_function:
            recording = self._recording_gradients()
            if isinstance(recording, Values):
                recording.put_at(calls_of(targets, self.model.name, self.number), tensor)
            else:
                recording.put_at(targets, tensor, done, where)
            return
        first = None
        for call, slot in calls_of(targets, self.model.name, self.number):
            key = self.put(call, slot, tensor, same_as=first)
            first = first or key

    def watched_by(self, watcher: Watcher) -> None:
        self.watcher = watcher

    @property
    def watch_tables(self) -> WatchTables | None:
        """What is known of gradients that are recorded; None where none are."""
        return None if self.watcher is None else self.watcher.tables

    def hook(self, tensor: Tensor, targets: Targets) -> None:
        """Have the gradient of `tensor` recorded at `targets`, which are still to be told."""
        assert self.watcher is not None
        self.watcher.hook(self, tensor, targets)

    @property
    def way_back(self) -> Any:
        """What hooks tensors and records their gradients at once; None where nothing does."""
        return None if self.watcher is None else self.watcher.way_back(self)

    def watch_known(self, call: Call, found: Slots) -> None:
        """The same as `watch`, of a call that only its Routine has told of."""
        self.calls[call.op, call.call] = call
        self.watch(call, found)

    def watch(self, call: Call, found: Slots) -> None:
        """Have the gradients of `found`, slots of `call`, recorded where they are wanted."""
        if self.watcher is not None:
            self.watcher.watch(self, call, found)

    def begin_backward(self) -> None:
        """The backward pass has come to this step: gradients of parameters now belong to it."""
        for step in reversed(self.all_steps()):  # the outermost comes last
            if step.watcher is not None:
                step.watcher.begin(step)

    def share(self, tensor: Tensor, asked: Asked) -> None:
        """A graph gave `tensor` and goes on computing with it: it alone knows the gradient.

        Who wants it is added to `asked`, which the graph's backward reads.
        """
        self._shared[_address_of(tensor)] = asked

    def ask(self, tensor: Tensor, call: Call, slot: str) -> bool:
        """Ask the graph that gave `tensor`, if one did, for its gradient as `slot` of `call`."""
        asked = self._shared.get(_address_of(tensor)) if self._shared else None
        if asked is not None:
            asked.append((self, call, slot))
        return asked is not None


def _address_of(tensor: Tensor) -> tuple[Any, ...]:
    """Where the elements of `tensor` lie."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.device
