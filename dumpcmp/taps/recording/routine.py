"""What a step does as steps before it did: such calls are known, and recorded at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, UntypedStorage, nn
from xxhash import xxh3_128, xxh3_128_hexdigest

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.built import built
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Call, Where
from dumpcmp.pytorch.names import (
    DisableTorchDispatch,
    DisableTorchFunction,
    dispatch_keys,
    free_weak_ref,
    num_function_modes,
    weak_ref,
)
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.calls import FOREIGN, arguments_of, current_place
from dumpcmp.taps.recording.functions import Function, in_order, needs_care
from dumpcmp.taps.recording.models import Model, Scope, Scopes
from dumpcmp.taps.recording.plain import counts_writes
from dumpcmp.taps.recording.values import Outlet, Values

_core: Any = built("dumpcmp.taps.recording._plan")
_TENSOR, _CONSTANT, _SEQUENCE, _SLICE, _ODD = range(5)  # how a part of the arguments looks
_TENSORS = (Tensor, nn.Parameter)
_CONSTANTS = (
    type(None), bool, int, float, str, type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
_SEQUENCES = (tuple, list, torch.Size)
_MOST_TENSORS = 128  # of one call
_MOST_TEXTS = 16  # of a call that comes now earlier, now later
_MOST_KNOWN = 65_536  # calls of one model

Appearance = tuple[Any, ...]
Ticket = tuple[Any, Any, int]  # what is known of a call, its CallPlan, and its order
Targets = list[tuple[Call | Ticket, str]]  # the calls and slots that one gradient is recorded at
# The slots that are watched, those that took each parameter, and the targets of each other tensor.
WatchTables = tuple[set[Where], dict[int, Targets], dict[Any, Targets]]

if _core is not None:
    _core.set_up(
        Tensor, nn.Parameter, dispatch_keys, Tensor.data_ptr, Tensor.stride, Tensor.storage_offset,
        Tensor.untyped_storage, UntypedStorage.nbytes, weak_ref, free_weak_ref,
        num_function_modes, torch._C._is_any_autocast_enabled, xxh3_128_hexdigest,
        xxh3_128, FOREIGN, DisableTorchFunction, DisableTorchDispatch, Tensor.detach,
        Tensor.contiguous, OrderedDict,
    )  # fmt: skip
IS_ABLE = _core is not None and None not in (num_function_modes, weak_ref, free_weak_ref)


class Repeating(Protocol):
    """A step, which may do as steps before it did."""

    outlet: Outlet
    model: Model
    number: int
    scopes: Scopes
    orders: Iterator[int]
    values: Values
    calls: dict[tuple[str, int], Call | Ticket]

    @property
    def watch_tables(self) -> WatchTables | None:
        """What is known of gradients that are recorded; None where none are."""

    def store(self, call: Call, found: Slots) -> None:
        """Record values of `call`, and no gradients of them."""

    def outputs(self, call: Call, result: object) -> None:
        """Record the outputs of `call`."""

    def leave(self, call: Call | Ticket, result: object) -> None:
        """Record the outputs of a module call."""

    def watch_known(self, call: Call, found: Slots) -> None:
        """Have the gradients of `found` recorded."""

    def hook(self, tensor: Tensor, targets: Targets) -> None:
        """Have the gradient of `tensor` recorded at `targets`, which are still to be told."""

    @property
    def way_back(self) -> Any:
        """What does so at once, where there is such a thing: see `way_back_of`."""


def way_back_of(*facts: Any) -> Any:
    """What hooks the tensors of a step, and records their gradients at once; None without C."""
    return _core.Backward(*facts) if IS_ABLE else None


def parameter_hook_of(*facts: Any) -> Any:
    """What is called with a parameter that has its gradient; None without C."""
    return _core.ParameterHook(*facts) if IS_ABLE else None


def routine_of(step: Repeating) -> Routine | None:
    """The Routine of `step`; None where all that it does goes the way of the unknown."""
    desk = _desk_for(step.outlet)
    return None if desk is None else Routine(step, desk)


def backward_routine_of(step: Repeating) -> BackwardRoutine | None:
    """The same for the gradients of `step`."""
    desk = None if step.outlet.condense is not None else _desk_for(step.outlet)
    return None if desk is None else BackwardRoutine(step, desk)


def _desk_for(outlet: Outlet) -> Any:
    """Where known values are laid down at once; None where none can be."""
    desk = getattr(outlet.knowing, "desk", None) if outlet.knowing is outlet.sink else None
    if not IS_ABLE or desk is None or not desk.is_open:
        return None
    if distributed.is_distributed() or distributed.has_stated() or outlet.is_taped:
        return None
    return desk


class Routine:
    """Knows the calls of one step again, by all that decides what is recorded of them.

    What it learns stays with the scopes of the model. `quick` records what it knows; whatever is
    not as it was comes back here, a call by `learn`, a value by `put`.
    """

    def __init__(self, step: Repeating, desk: Any) -> None:
        self._step, self._desk = step, desk
        outlet, values = step.outlet, step.values
        self._outlet = outlet
        self._made: tuple[int, Call] | None = None
        self.quick: Any = _core.Course(
            self, step.scopes, step.orders, outlet, desk, outlet.lock, *values.tables,
            distributed.stated_layouts(), outlet.tap.inputs, outlet.tap.outputs,
            outlet.condense is not None, outlet.remembers,
        )  # fmt: skip
        if (tables := step.watch_tables) is not None:
            self.quick.watch_by(*tables, step.calls, distributed.origins(), step.way_back)

    def forget(self) -> None:
        """Memory may have been written to, uncounted: keep nothing that was made of it before."""
        self.quick.forget()

    def end(self) -> None:
        """Count what was recorded; nothing more will be."""
        quick, counts = self.quick, self._outlet.counts
        with self._outlet.lock:
            counts.calls += quick.num_calls
            counts.values += quick.num_values
            counts.links += quick.num_links
            counts.nbytes += quick.nbytes
        quick.is_over, self.quick = True, None

    def follow(self, call_slowly: Callable[..., Any]) -> None:
        """Take calls of modules by `door`; those that are not known go to `call_slowly`."""
        self.quick.follow(self._step, Scope, ROOT, call_slowly)

    def door(self, module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
        """What calls `module` by `run`, and records the call."""
        call: Callable[..., Any] = _core.ModuleCall(self.quick, module, run)
        return call

    def leave(self, ticket: Ticket, given: object) -> None:
        """Record what a module gave that was called before this has ended."""
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            self._step.leave(ticket, given)

    def learn(
        self, func: Callable[..., Any], function: Function, args: Any, kwargs: Any, call: Call,
        given: object,
    ) -> None:  # fmt: skip
        """Know the like of `call` again, which has just been recorded, if all of it is plain."""
        ordered = in_order(function, args)
        if needs_care(call.target) or function.draws(ordered, kwargs) or func is Tensor.view_as:
            return
        taken = ordered, kwargs, function.positions
        known = self._known(call, taken, given, ordered is not args, function.returns_nothing)
        if known is not None:
            self._keep(known, self._step.scopes.here, func, function.name, call.call)

    def learn_module(
        self, scope: Scope, module: nn.Module, args: Any, kwargs: Any, call: Call, given: object
    ) -> None:
        """Know the like of a call of `module` again, which opened `scope`."""
        known = self._known(call, (args, kwargs, {}), given)
        if known is not None:
            self._keep(known, scope, type(module), "", 0)

    def _keep(self, known: Any, scope: Scope, key: Any, name: str, number: int) -> None:
        _, numbers = scope.known.setdefault(key, (name, {}))
        self._step.model.num_known += number not in numbers
        numbers[number] = known

    def _known(
        self, call: Call, taken: tuple[Any, Any, Mapping[str, int]], given: object,
        is_swapped: bool = False, gives_first: bool = False,
    ) -> Any:  # fmt: skip
        """What is known of a call; None where its arguments are odd."""
        if torch._C._is_any_autocast_enabled() or self._step.model.num_known >= _MOST_KNOWN:
            return None
        args, kwargs, positions = taken
        looks = [_look(each) for each in args]
        named = [(word, _look(each)) for word, each in kwargs.items()]
        text = self._desk.text_of(call)
        if text is None or None in looks or any(look is None for _, look in named):
            return None
        took, gave = arguments_of(args, kwargs, positions)[0], slots_of("output", given)
        if max(len(took), len(gave)) > _MOST_TENSORS:
            return None
        place = current_place()
        known = _core.Known(
            call, (call.op, call.call), tuple(looks), tuple(named), _look(given) or (_ODD,),
            *(place or (None, 0)), self._looks(call, took), self._looks(call, gave), is_swapped,
            gives_first,
        )  # fmt: skip
        known.texts[call.order] = text
        return known

    def _looks(self, call: Call, found: Slots) -> list[Any]:
        looks = []
        for slot, tensor in found:
            look = _core.Look(slot, (call.op, call.call, slot))
            look.key = Key(call.model, call.step, call.op, call.call, slot)
            _settle(self._outlet, look, tensor)
            looks.append(look)
        return looks

    def begin(self, known: Any, order: int) -> Any:
        """Tell the archive of a call that it does not take at once; gives its CallPlan, if any."""
        step, quick = self._step, self.quick
        with HOLD:
            self._outlet.sink.call(self._call(known, order))
            laid = self._desk.step
            if laid is None or (laid.model, laid.number) != (step.model.name, step.number):
                return None
            quick.step = laid
            return laid.calls.get(known.name)

    def tell(self, known: Any, order: int) -> Any:
        """What is written of a call that comes at another place in the order than before."""
        with HOLD:
            text = self._desk.text_of(self._call(known, order))
            if text is not None:
                if len(known.texts) >= _MOST_TEXTS:
                    known.texts.clear()
                known.texts[order] = text
            return text

    def put(self, ticket: Ticket, look: Any, tensor: Tensor, is_strange: bool) -> None:
        """Record a value in the way of the unknown; what is strange in it will be known."""
        known, _, order = ticket
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            self._step.store(self._call(known, order), [(look.slot, tensor)])
            if is_strange or look.form is None:
                _settle(self._outlet, look, tensor)

    def condense(self, look: Any, tensor: Tensor) -> tuple[Any, ...] | None:
        """What is kept in place of a value, and how it comes into the archive; None: all of it."""
        condense = self._outlet.condense
        assert condense is not None
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            held = condense(look.key, tensor, "")
            if held is None:
                return None
            stored, source = held.stored, held.source
            if look.stored is not stored:
                offset, device = tensor.storage_offset(), tensor.device
                facts = (look.slot, look.geometry, (offset, device), "", "", stored)
                look.kept_form, look.stored = self._outlet.forms.get(facts), stored
            if look.kept_form is None:
                return ()
            if source is not None:
                fill = getattr(source, "fill", None)
                look.again = getattr(source, "again", None)
                look.takes_gaps = getattr(look.again, "takes_gaps", False)
                look.kept_nbytes = source.nbytes
                kept = (look.kept_form, fill, 0, 0, (), (), held.digest, source.nbytes)
                return kept if fill is not None else ()
            numbers = held.numbers
            if not numbers.is_cpu:
                return ()
            lying = numbers.data_ptr(), numbers.itemsize, numbers.shape, numbers.stride()
            return look.kept_form, None, *lying, held.digest, numbers.nbytes, numbers

    def put_outputs(self, ticket: Ticket, given: object) -> None:
        """Record what a call gave, where that looks different from before."""
        known, _, order = ticket
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            self._step.outputs(self._call(known, order), given)

    def watch(self, ticket: Ticket, found: Slots) -> None:
        """Have the gradients of `found` recorded."""
        known, _, order = ticket
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            self._step.watch_known(self._call(known, order), found)

    def hook(self, tensor: Tensor, targets: Targets) -> None:
        """Have the gradient of `tensor` recorded, which is the first with these `targets`."""
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            self._step.hook(tensor, targets)

    def _call(self, known: Any, order: int) -> Call:
        """The call at its place in this step, made once while values of it come."""
        if self._made is None or self._made[0] != order:
            step = self._step
            self._made = order, call_of((known, None, order), step.model.name, step.number)
        return self._made[1]


class BackwardRoutine:
    """Knows the gradients of one step again: slots that had one of the same form before.

    The Routine of the step has ended when they come.
    """

    def __init__(self, step: Repeating, desk: Any) -> None:
        outlet, values = step.outlet, step.values
        self._model, self._number = step.model, step.number  # the step holds this
        self._desk, self._outlet, self._values = desk, outlet, values
        self._quick = _core.Course(
            None, step.scopes, step.orders, outlet, desk, outlet.lock, *values.tables,
            distributed.stated_layouts(), True, True, False, outlet.remembers,
        )  # fmt: skip

    @property
    def facts(self) -> tuple[Any, ...]:
        """What C needs to know to put those that are known by itself; see `_put_known`."""
        return self._quick, self._values.writes, self._model.gradients

    def put_at(
        self, targets: Targets, tensor: Tensor, done: int = 0, where: Where | None = None
    ) -> None:
        """Record one gradient at the first of `targets`, and links at others.

        At so many of them it is recorded, `done`, and lies at `where`.
        """
        with self._outlet.lock:
            if not done:
                done, where = self._put_known(targets, tensor)
            if done < len(targets):
                rest = calls_of(targets[done:], self._model.name, self._number)
                self._values.put_at(rest, tensor, where)
                self._learn(rest, tensor)

    def _put_known(self, targets: Targets, tensor: Tensor) -> tuple[int, Where | None]:
        """Record it where it is known; how many of `targets` that are, and where it lies."""
        outlet, laid, model = self._outlet, self._desk.step, self._model
        if outlet.knowing is not outlet.sink or outlet.is_taped or self._values.has_uncounted:
            return 0, None
        if laid is None or laid.number != self._number or laid.model != model.name:
            return 0, None
        quick, counts = self._quick, outlet.counts
        found: tuple[int, Where | None] = quick.put_at(targets, tensor, model.gradients, laid.calls)
        counts.values += quick.num_values
        counts.links += quick.num_links
        counts.nbytes += quick.nbytes
        quick.num_values = quick.num_links = quick.nbytes = 0
        return found

    def _learn(self, targets: list[tuple[Call, str]], tensor: Tensor) -> None:
        known = self._model.gradients
        for call, slot in targets if len(known) < _MOST_KNOWN else ():
            where = (call.op, call.call, slot)
            look = known.get(where)
            if look is None:
                look = known[where] = _core.Look(slot, where)
            _settle(self._outlet, look, tensor)


def call_of(ticket: Ticket, model: str, step: int) -> Call:
    """The call that `ticket` is of, in a step of `model`."""
    like = ticket[0].call
    return Call(
        model, step, like.op, like.call, ticket[2], like.target, like.source, like.phase,
        like.arguments, like.origins, like.kernel, like.thread,
    )  # fmt: skip


def calls_of(targets: Targets, model: str, step: int) -> list[tuple[Call, str]]:
    """`targets`, all of them with their calls in a step of `model`."""
    return [
        (call if isinstance(call, Call) else call_of(call, model, step), slot)
        for call, slot in targets
    ]


def _settle(outlet: Outlet, look: Any, tensor: Tensor) -> None:
    """Remember in `look` what the value looks like; nothing where it is odd."""
    look.settle()
    counted = counts_writes(tensor)
    if counted is None or distributed.layout_of(tensor):
        return
    geometry = (tensor.shape, tensor.stride(), tensor.dtype)
    offset, device = tensor.storage_offset(), tensor.device
    form = outlet.forms.get((look.slot, geometry, (offset, device), "", "", None))
    if form is not None or outlet.condense is not None:
        look.settle(
            type(tensor), tensor.dtype, device, geometry, tensor.itemsize, form,
            dispatch_keys(tensor).raw_repr(), offset, tensor.nbytes, counted, tensor.is_cpu,
            tensor.is_contiguous(),
        )  # fmt: skip


def _look(value: object) -> Appearance | None:
    """How `value` looks: where tensors are in it, and all else of it; None where it is odd."""
    kind = type(value)
    if kind in _TENSORS:
        return (_TENSOR,)
    if kind in _CONSTANTS:
        return _CONSTANT, value
    if kind is slice:
        assert isinstance(value, slice)
        bounds = [_look(each) for each in (value.start, value.stop, value.step)]
        return None if None in bounds else (_SLICE, *bounds)
    if kind in _SEQUENCES or kind.__module__ == "torch.return_types":
        assert isinstance(value, (tuple, list))
        parts = tuple([_look(each) for each in value])
        return None if None in parts else (_SEQUENCE, kind, parts)
    return None
