"""Names and numbers what a capture sees: models, steps, calls, and the slots of their values."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import Call, Phase, Sink
from dumpcmp.nouns.selection import Tap
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording import arguments as slots
from dumpcmp.taps.recording.lines import current_line
from dumpcmp.taps.recording.models import Function as FunctionModel
from dumpcmp.taps.recording.models import Model, has_state
from dumpcmp.taps.recording.naming import Function, in_order
from dumpcmp.taps.recording.precision import Precision
from dumpcmp.taps.recording.sources import Stagings
from dumpcmp.taps.recording.values import Condense, Values


@dataclass(slots=True)
class Counts:
    """What a capture has seen so far, for the live line and the summary at the end."""

    steps: int = 0
    calls: int = 0
    values: int = 0
    links: int = 0
    nbytes: int = 0


class Recorder:
    """What all steps of a capture share: where values go, and how models are named."""

    def __init__(self, sink: Sink, tap: Tap, rank: int = 0) -> None:
        self.sink = sink
        self.tap = tap
        self.rank = rank
        self.counts = Counts()
        self.ops: set[str] = set()  # all ops that ran, also those not selected
        self.lacking: list[str] = []  # what this torch has not, and what is not recorded for it
        self.lock = threading.RLock()
        self.stagings = Stagings()
        self.condense: Condense | None = None  # takes Summaries, where they are all that is kept
        self.num_steps = 0  # of the model that ran most
        self._models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
        self._stateless: dict[type | str, Model] = {}
        self._taken: dict[str, int] = {}
        self._outside: Step | None = None

    def begin(self, root: nn.Module) -> Step | None:
        """A new step of `root`; None where it is not selected."""
        with self.lock:
            model = self.model_of(root)
            number = model.num_steps
            model.num_steps += 1
            self.num_steps = max(self.num_steps, model.num_steps)
            if not self.tap.selects_step(number):
                return None
            self.counts.steps += 1
            model.step = Step(self, model, number)
            return model.step

    def begin_function(self, name: str, wanted: bool) -> Step:
        """A new step of a compiled function; if it is not `wanted`, only its modules are named."""
        with self.lock:
            model = self.model_of(name)
            step = model.step = Step(self, model, model.num_steps)
            step.is_function = True
            step.is_silent = not (wanted and self.tap.selects_step(step.number))
            model.num_steps += 1
            if not step.is_silent:
                self.num_steps = max(self.num_steps, model.num_steps)
                self.counts.steps += 1
            return step

    def model_of(self, root: nn.Module | str) -> Model:
        """The Model that `root` is. Instances without state, such as losses, share one."""
        if isinstance(root, str):
            if root not in self._stateless:
                self._stateless[root] = FunctionModel(self._unique(root), self)
            return self._stateless[root]
        known = self._models.get(root)
        if known is None:
            name = type(root).__name__
            known = (
                Model(self._unique(name)) if has_state(root) else self._sharing(type(root), name)
            )
            self._models[root] = known
            known.learn(root)
        return known

    def _sharing(self, kind: type, name: str) -> Model:
        if kind not in self._stateless:
            self._stateless[kind] = Model(self._unique(name))
        return self._stateless[kind]

    def finish(self, step: Step) -> None:
        """Tell a Sink that wants to know that nothing more of `step` will come."""
        finish_step = getattr(self.sink, "finish_step", None)
        if finish_step is not None:
            finish_step(step.model.name, step.number)

    def outside(self) -> Step:
        """The step for values that the program saves outside of any model."""
        with self.lock:
            if self._outside is None:
                self._outside = Step(self, Model(self._unique("saved")), 0)
            return self._outside

    def step_with(self, module: nn.Module) -> Step | None:
        """The latest step of the model that `module` is a part of."""
        for model in list(self._models.values()):
            if id(module) in model.paths:
                return model.step
        return None

    def _unique(self, name: str) -> str:
        number = self._taken.get(name, 0)
        self._taken[name] = number + 1
        return f"{name}-{number}" if number else name


class Scope:
    """One call of a module, within which its functions are counted."""

    __slots__ = ("call", "functions", "path", "prefix")

    def __init__(self, path: str, call: int, mark: str = "") -> None:
        self.path = path
        self.call = call
        self.prefix = (path or ROOT) + (f"@{call}" if call else "") + mark
        self.functions: dict[str, _Counter] = {}


class _Counter:
    __slots__ = ("next", "op", "selected")

    def __init__(self, op: str, selected: bool) -> None:
        self.op = op
        self.next = 0
        self.selected = selected


class Step:
    """One call of a root module: numbers its calls and remembers the values it has stored."""

    def __init__(self, recorder: Recorder, model: Model, number: int) -> None:
        self.recorder = recorder
        self.tap = recorder.tap
        self.model = model
        self.number = number
        self._mark = ""  # stands behind the module's path in the ops of a recomputation
        self.root_scope = self.scope = Scope("", 0)
        self.phase = Phase.FORWARD
        self.precision: Precision | None = None
        self.line: str | None = None  # of the graph node that runs now; None: ask the stack
        self.gradients: Any = None  # set where the tap wants them: gradients.Gradients
        self.is_function = False  # of a compiled function: modules that it calls begin their own
        self.is_silent = False  # records nothing itself
        self.inner: dict[tuple[str, int], Step] = {}  # those that began inside of its graphs
        self.shared: dict[Any, list[Any]] = {}  # what compiled graphs gave: who wants its gradient
        self.begin_inner: Callable[[nn.Module], Step | None] = lambda _: None
        self._orders = itertools.count()
        self._forward: Step | None = None  # of a recomputation: the step that it repeats
        self._again: Step | None = None
        self._calls: dict[tuple[str, int], Call] = {}  # kept only to attribute gradients
        self._scopes: list[Scope] = []
        self._module_calls: dict[str, int] = {}
        self._module_first: dict[str, Call] = {}
        self._values = Values(recorder)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> Call | None:
        """Open the scope of a call of `module`; its Call, with its inputs, where it is selected."""
        path = self.model.path_of(module, self.scope.path)
        self._scopes.append(self.scope)
        self.scope = self.new_scope(path)
        number = self.scope.call
        op = (path or ROOT) + self._mark
        self.recorder.ops.add(op)
        if not self.tap.selects_op(op):
            return None
        target = f"{type(module).__module__}.{type(module).__qualname__}"
        found, arguments = slots.arguments_of(args, kwargs, {})
        call = self.call(op, number, target, arguments, current_line())
        self._module_first.setdefault(op, call)
        if number == 0 and self.tap.weights and not self._mark:
            self._put_weights(call, module)
        self.inputs(call, found)
        return call

    def new_scope(self, path: str) -> Scope:
        """The scope of the next call of the module at `path`."""
        number = self._module_calls.get(path, 0)
        self._module_calls[path] = number + 1
        return Scope(path, number, self._mark)

    @property
    def is_open(self) -> bool:
        """Whether a module of this step is running."""
        return bool(self._scopes)

    def leave(self) -> None:
        """Close the scope that `enter` opened."""
        self.scope = self._scopes.pop()

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """A call of `function` in the present scope with its inputs, where it is selected."""
        counted = self.count(function)
        if counted is None:
            return None
        op, number = counted
        args = in_order(function, args)
        found, arguments = slots.arguments_of(args, kwargs, function.positions)
        if torch._C._is_any_autocast_enabled():
            arguments = f'{arguments[:-1]},"autocast":{_autocast()}}}'
        line = current_line() if self.line is None else self.line
        call = self.call(op, number, function.target, arguments, line)
        if not self._mark and function.draws(args, kwargs):
            self._put_rng(call, found)
        self.inputs(call, found)
        return call

    def count(self, function: Function) -> tuple[str, int] | None:
        """The op that `function` is in the present scope, and the number of this call of it."""
        counter = self.scope.functions.get(function.name)
        if counter is None:
            op = f"{self.scope.prefix}/{function.name}"
            counter = _Counter(op, not self.is_silent and self.tap.selects_op(op))
            self.scope.functions[function.name] = counter
            if not self.is_silent:
                self.recorder.ops.add(op)
        if not counter.selected:
            return None
        number = counter.next
        counter.next = number + 1
        return counter.op, number

    def save(self, name: str, tensor: Tensor) -> None:
        """Record a value that the program names itself, as an op of the present scope."""
        call = self.function(Function(name, target="dumpcmp.save"), (), {})
        if call is not None:
            self._record(call, [("output.0", tensor)])

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
        order = next(self._orders)
        call = Call(
            self.model.name,
            self.number,
            Op(op),
            number,
            order,
            target,
            source,
            self.phase,
            arguments,
            origins,
            kernel,
        )
        if self.gradients is not None:
            self._calls[op, number] = call
        with self.recorder.lock:
            self.recorder.counts.calls += 1
            self.recorder.sink.call(call)
        return call

    def recompute(self) -> Step:
        """The step in which activation checkpointing runs parts of this one again.

        Its calls are marked as recomputation and hold no values; what gradients it makes
        belong to the calls that it repeats.
        """
        if self._again is None:
            self._again = Step(self.recorder, self.model, self.number)
            self._again.phase = Phase.RECOMPUTE
            self._again._mark = _RECOMPUTE
            self._again.gradients = self.gradients
            self._again._forward = self
            self._again._orders = self._orders
        return self._again

    @contextmanager
    def backward_in(self, scope: Scope) -> Iterator[None]:
        """Record what runs in the block as part of the backward pass, in the forward's `scope`."""
        before, gradients = self.scope, self.gradients
        self.scope, self.phase, self.gradients = scope, Phase.BACKWARD, None
        try:
            yield
        finally:
            self.scope, self.phase, self.gradients = before, Phase.FORWARD, gradients

    def module_call(self, op: str) -> Call:
        """The first call of the module `op` in this step, which weights and gradients belong to."""
        if op not in self._module_first:
            self._module_first[op] = self.call(op, 0, "", "", "")
        return self._module_first[op]

    def inputs(self, call: Call, found: slots.Slots) -> None:
        """Record the inputs of `call`, and watch for their gradients."""
        if self.tap.inputs:
            self._record(call, found)

    def outputs(self, call: Call, result: object) -> None:
        """Record the outputs of `call`, and watch for their gradients."""
        if self.tap.outputs:
            self._record(call, slots.slots_of("output", result))

    def _record(self, call: Call, found: slots.Slots) -> None:
        found = distributed.of_model(call.op, found)
        if self._forward is None:
            for slot, tensor in found:
                self.put(call, slot, tensor)
        if self.gradients is not None:
            repeated = self._forward._calls.get(_unmarked(call)) if self._forward else call
            if repeated is not None:
                self.gradients.watch(repeated, found)

    def put(
        self,
        call: Call,
        slot: str,
        tensor: Tensor,
        same_as: Key | None = None,
        fresh: bool = False,
        seen_in: str = "",
    ) -> Key:
        """Record one value of `call`; see `Values.put`."""
        owner = self.owner_of(call)
        if owner is not self:
            return owner.put(call, slot, tensor, same_as, fresh, seen_in)
        key = Key(self.model.name, self.number, call.op, call.call, slot)
        if same_as is not None and (same_as.model, same_as.step) != (key.model, key.step):
            same_as = None  # links stay within a step, which can be read on its own
        return self._values.put(key, call.order, tensor, same_as, fresh, seen_in)

    def owner_of(self, call: Call) -> Step:
        """The step that `call` is of: this one, or one that began inside of its graphs."""
        return self.inner.get((call.model, call.step), self) if self.inner else self

    def _put_weights(self, call: Call, module: nn.Module) -> None:
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            self.put(call, f"param.{name}", parameter)
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            self.put(call, f"buffer.{name}", buffer)

    def _put_rng(self, call: Call, found: slots.Slots) -> None:
        """Record the state of the generator that a random function is about to draw from."""
        if not self.tap.inputs:
            return
        on_gpu = next((t.device for _, t in found if t.device.type == "cuda"), None)
        if on_gpu is not None:
            self.put(call, "rng.cuda", torch.cuda.get_rng_state(on_gpu))
        else:
            self.put(call, "rng.cpu", torch.get_rng_state())


_RECOMPUTE = "@recompute"


def _unmarked(call: Call) -> tuple[str, int]:
    return call.op.replace(_RECOMPUTE, ""), call.call


def _autocast() -> str:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    words = (f'"{k}":"{str(torch.get_autocast_dtype(k)).removeprefix("torch.")}"' for k in kinds)
    return f"{{{','.join(words)}}}"
