"""Gradients of recorded values: one hook a tensor, removed when it fires or the capture ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Call, Where
from dumpcmp.pytorch.module_trees import named_parameters_of
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.routine import (
    Targets,
    WatchTables,
    calls_of,
    parameter_hook_of,
    way_back_of,
)
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.values import Values

_MOST_GONE = 4096  # hooks of which some may be of tensors that are gone


@dataclass(frozen=True, slots=True)
class Watched:
    """A step and its gradients; where C records these, it has an object of its own for that."""

    gradients: Gradients
    step: Step


class GraphReel(Protocol):
    """A CUDA graph that is captured: what comes meanwhile is recorded whenever it is replayed."""

    @property
    def takers(self) -> dict[tuple[str, int], dict[int, Targets]]: ...  # of parameters, by step

    def returning(self, origin: Any, step: Step) -> AbstractContextManager[Values]:
        """What comes now are gradients of what `origin`, this or another, computes of `step`."""

    def scope_beside(self, scope: Scope) -> Scope:
        """Where ops of the backward pass are counted that belong to `scope`."""


class Watches:
    """The hooks of a whole capture, so that all can be removed at its end."""

    def __init__(self) -> None:
        self.num_lost = 0  # gradients of what a CUDA graph computes that no graph computes
        self._reel: GraphReel | None = None  # while a CUDA graph is captured
        self._parameters: dict[int, tuple[str, RemovableHandle]] = {}  # whose steps they are of
        self._tensors: dict[int, RemovableHandle] = {}
        self._unreduced: dict[tuple[str, str], None] = {}  # parameters: as this rank has them
        self._hooked: dict[int, weakref.ref[Any]] = {}  # by C: the hooks that each is among
        self._latest: dict[str, Watched] = {}  # of each model, the step that began last
        self._running: dict[str, Watched] = {}  # and the one that the backward pass has come to

    def begin(self, step: Step, root: nn.Module | None) -> None:
        """Watch the tensors of `step` and the parameters of `root`, where gradients are wanted."""
        if not step.tap.backward or step.is_silent:
            return
        gradients = self._gradients_of(step)
        step.watched_by(gradients)
        if len(self._hooked) > _MOST_GONE:  # forget those whose tensor is gone
            gone = [number for number, hooks in self._hooked.items() if hooks() is None]
            for number in gone:
                del self._hooked[number]
        model, watched = step.model.name, self._parameters
        for name, parameter in named_parameters_of(root) if root is not None else ():
            known = watched.get(id(parameter))
            if not parameter.requires_grad:
                continue
            if known is None or known[0] != model or known[1].hooks_dict_ref() is None:
                name = name.replace("_orig_mod.", "")
                if parameter.is_leaf:
                    self._watch_parameter(step, name, parameter)
                else:
                    gradients.watch_computed(step, name, parameter)

    def watch_computed(self, gradients: Gradients, step: Step, name: str, tensor: Tensor) -> None:
        """Hook `tensor`, which stands for a parameter in `step` and was computed of others."""
        fired = partial(self._computed_fired, gradients, step, name)
        self._keep(id(fired), tensor.register_hook(fired))  # type: ignore[no-untyped-call]

    def _computed_fired(
        self, gradients: Gradients, step: Step, name: str, grad: Tensor | None
    ) -> None:
        if grad is None:
            return
        self.running(gradients, step)
        if distributed.is_distributed():
            self._unreduced[step.model.name, name] = None
        with HOLD, DisableTorchFunction(), DisableTorchDispatch():
            gradients.put_computed(step, name, grad)

    def remarks(self) -> list[str]:
        """What the user must hear of gradients that are not what the optimizer gets."""
        if not self._unreduced:
            return []
        _, first = next(iter(self._unreduced))
        return [
            f"gradients of {len(self._unreduced)} parameters, such as {first}, are recorded as "
            "this rank computed them: the model ran with tensors that were made of its parameters "
            "(FSDP with use_orig_params=True does so), and what all ranks make of their gradients "
            "afterwards was not seen; dump one step more, whose weights tell"
        ]

    def _watch_parameter(self, step: Step, name: str, parameter: Tensor) -> None:
        """Record the gradient of `parameter` in steps of this model, which took it last."""
        if id(parameter) in self._parameters:
            self._parameters[id(parameter)][1].remove()
        hook = self._parameter_hook(step, name)
        handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._parameters[id(parameter)] = step.model.name, handle

    def wind(self, reel: GraphReel) -> Callable[[], None]:
        """What comes now goes into a CUDA graph, until what this gives is called."""
        before, tables = self._reel, (self._latest, self._running)
        kept = [dict(table) for table in tables]
        self._reel = reel
        for table in tables:
            table.clear()

        def end() -> None:
            self._reel = before
            for table, known in zip(tables, kept, strict=True):
                table.clear()
                table.update(known)

        return end

    def returning(self, origin: GraphReel, step: Step) -> AbstractContextManager[Values | None]:
        """What comes now are gradients of what the graph `origin` computes of `step`.

        Gives what records them; None if no graph computes them, so that they are lost.
        """
        if self._reel is not None:
            return self._reel.returning(origin, step)
        self.num_lost += 1
        return nullcontext()

    @property
    def reel(self) -> GraphReel | None:
        """The CUDA graph that is captured now."""
        return self._reel

    def steps(self) -> list[Step]:
        """Those whose gradients may be coming."""
        watched = (*self._latest.values(), *self._running.values())
        return list({id(each.step): each.step for each in watched}.values())

    def _gradients_of(self, step: Step) -> Gradients:
        """What watches `step`, or that part of it which goes into a CUDA graph now."""
        model, reel = step.model.name, None if step.is_function else self._reel
        gradients = Gradients(self, reel)
        self._latest[model] = self._watched(gradients, step)
        if reel is not None:
            reel.takers[model, step.number] = gradients.tables[1]
        return gradients

    def _watched(self, gradients: Gradients, step: Step) -> Watched:
        if gradients.reel is not None:
            return Watched(gradients, step)
        watched: Watched | None = way_back_of(
            gradients, step, step.model.name, self._hooked, self._running, *gradients.recorded,
            partial(_known_gradients, step), partial(_put, step),
        )  # fmt: skip
        return Watched(gradients, step) if watched is None else watched

    def _parameter_hook(self, step: Step, name: str) -> Any:
        """What is called with the parameter of this name of `step`'s model, in all its steps."""
        model, (path, _, word) = step.model.name, name.rpartition(".")
        slowly = partial(self._parameter_fired, model, name)
        op = path or ROOT
        selected = op if step.tap.selects_op(op) else None
        tables = self._running, self._latest
        return parameter_hook_of(*tables, model, name, selected, f"grad.{word}", slowly) or slowly

    def way_back(self, step: Step) -> Watched | None:
        """What hooks tensors of `step` in C, where that is so."""
        latest = self._latest.get(step.model.name)
        return latest if latest is not None and latest.step is step else None

    def running(self, gradients: Gradients, step: Step) -> None:
        """Remember that the backward pass has come to `step`, of its model."""
        model = step.model.name
        if model not in self._running or self._running[model].step is not step:
            self._running[model] = self.way_back(step) or self._watched(gradients, step)

    def remove(self) -> None:
        handles = [handle for _, handle in self._parameters.values()]
        for handle in (*handles, *self._tensors.values()):
            handle.remove()
        for number, hooks in self._hooked.items():
            (hooks() or {}).pop(number, None)
        for known in (
            self._parameters, self._tensors, self._hooked, self._latest, self._running,
        ):  # fmt: skip
            known.clear()

    def add(self, tensor: Tensor, gradients: Gradients, step: Step, targets: Targets) -> None:
        """Hook `tensor`, whose gradient is recorded at all of `targets`, which are of `step`."""
        fired = partial(self._fired, gradients, step, targets)
        self._keep(id(targets), tensor.register_hook(fired))  # type: ignore[no-untyped-call]

    def _keep(self, number: int, handle: RemovableHandle) -> None:
        """Keep what removes a hook of a tensor until the capture ends."""
        self._tensors[number] = handle
        if len(self._tensors) % 4096 == 0:  # forget those whose tensor is gone
            alive = {k: h for k, h in self._tensors.items() if h.hooks_dict_ref() is not None}
            self._tensors = alive

    def _fired(
        self, gradients: Gradients, step: Step, targets: Targets, grad: Tensor | None
    ) -> None:
        if grad is None:  # compiled code tells so of outputs that nothing was computed from
            return
        handle = self._tensors.pop(id(targets), None)
        if handle is None:
            return
        handle.remove()
        self.running(gradients, step)
        gradients.put(step, targets, grad)

    def _parameter_fired(self, model: str, name: str, parameter: Tensor) -> None:
        watched = self._running.get(model) or self._latest.get(model)
        if watched is None:  # a CUDA graph is captured of a backward pass alone
            self.num_lost += 1
            return
        gradients, step = watched.gradients, watched.step

        def put() -> None:
            with HOLD, DisableTorchFunction(), DisableTorchDispatch():
                gradients.put_parameter(step, name, parameter)

        if distributed.is_distributed():  # the gradient is whole only after its reduction
            distributed.after_backward(parameter, put)
        else:
            put()


def _put(
    step: Step, targets: Targets, grad: Tensor, done: int = 0, where: Where | None = None
) -> None:
    with HOLD, DisableTorchFunction(), DisableTorchDispatch():
        step.put_at(targets, grad, done, where)


def _known_gradients(step: Step) -> tuple[Any, ...] | None:
    with HOLD:
        return step.known_gradients()


class Gradients:
    """The gradients of one step: which tensors are watched, and where each is recorded.

    It does not hold its step, which holds it: hooks do, as long as gradients may come.
    """

    def __init__(self, watches: Watches, reel: GraphReel | None = None) -> None:
        self._watches = watches
        self.reel = reel  # the CUDA graph that computes what it watches, if one does
        self._targets: dict[Any, Targets] = {}
        self._takers: dict[int, Targets] = {}  # of parameters: the functions that took them
        self._watched: set[tuple[str, int, str]] = set()
        self._recorded: set[str] = set()
        self._computed: set[str] = set()  # parameters that were computed of others

    def watch(self, step: Step, call: Call, found: Slots) -> None:
        """Record the gradients of `found` as slots of `call` of `step`, once they are known.

        A tensor is known by the autograd node that made it, so that what an in-place op makes
        of it is another one. Parameters are watched on their own.
        """
        for slot, tensor in found:
            if not tensor.requires_grad:
                continue
            if (call.op, call.call, slot) in self._watched:  # a recomputation repeats it
                continue
            self._watched.add((call.op, call.call, slot))
            if isinstance(tensor, nn.Parameter):
                self._takers.setdefault(id(tensor), []).append((call, f"grad_{slot}"))
                continue
            tensor = distributed.origin_of(tensor)
            if not tensor.requires_grad:  # a graph keeps only what it needs of a DTensor
                continue
            node, slot = tensor.grad_fn, f"grad_{slot}"
            if type(node).__name__ == "CompiledFunctionBackward" and step.ask(tensor, call, slot):
                continue
            which = (id(tensor),) if node is None else (node._sequence_nr(), tensor.output_nr)
            targets = self._targets.get(which)
            if targets is None:
                targets = self._targets[which] = []
                self.hook(step, tensor, targets)
            targets.append((call, slot))

    def hook(self, step: Step, tensor: Tensor, targets: Targets) -> None:
        """Have the gradient of `tensor` recorded at `targets`, which are added to meanwhile."""
        self._watches.add(tensor, self, step, targets)

    @property
    def tables(self) -> WatchTables:
        """What `watch` fills, for who does the same of calls that are known."""
        return self._watched, self._takers, self._targets

    @property
    def recorded(self) -> tuple[set[str], dict[int, Targets]]:
        """The parameters whose gradients are, and the functions that took each."""
        return self._recorded, self._takers

    def way_back(self, step: Step) -> Any:
        """What hooks the tensors of `step` in C, where that is so."""
        return self._watches.way_back(step)

    def rehearsing(self, step: Step) -> Gradients:
        """What watches that part of `step` which a CUDA graph will compute."""
        return self._watches._gradients_of(step)

    def put(self, step: Step, targets: Targets, grad: Tensor) -> None:
        """Record a gradient at `targets`."""
        if self.reel is None:
            _put(step, targets, grad)
            return
        found = calls_of(targets, step.model.name, step.number)
        with (
            HOLD, DisableTorchFunction(), DisableTorchDispatch(),
            self._watches.returning(self.reel, step) as values,
        ):  # fmt: skip
            if values is not None:
                values.put_at(found, grad)

    def begin(self, step: Step) -> None:
        """The backward pass has reached `step`: gradients of parameters now belong to it."""
        self._watches.running(self, step)

    def watch_parameters(self, step: Step, path: str, module: nn.Module) -> None:
        """Watch those of `module`, which is called at `path`, that were computed of others."""
        for word, tensor in module._parameters.items():
            if tensor is not None and tensor.requires_grad and not tensor.is_leaf:
                self.watch_computed(step, f"{path}.{word}".lstrip("."), tensor)

    def watch_computed(self, step: Step, name: str, tensor: Tensor) -> None:
        """Record the gradient of a parameter that was computed of others, in `step` alone.

        `functional_call` runs modules with such, and FSDP with views of what it has gathered.
        Autograd accumulates nothing in them: their gradient is what it passes through them.
        """
        if name not in self._computed:
            self._computed.add(name)
            self._watches.watch_computed(self, step, name, tensor)

    def put_computed(self, step: Step, name: str, grad: Tensor) -> None:
        """Record what the backward pass of `step` gives for such a parameter."""
        path, _, word = name.rpartition(".")
        if name not in self._recorded and step.tap.selects_op(path or ROOT):
            self._recorded.add(name)
            self.put(step, [(step.module_call(path or ROOT), f"grad.{word}")], grad)

    def put_parameter(self, step: Step, name: str, parameter: Tensor) -> None:
        """Record the gradient that a parameter has after the backward pass of `step`.

        The functions that took the parameter have it, too. Where ranks reduce gradients it is no
        longer what they gave.
        """
        if parameter.grad is None or name in self._recorded:
            return
        self._recorded.add(name)
        path, _, word = name.rpartition(".")
        targets = [] if distributed.is_distributed() else self._takers.get(id(parameter), [])
        if step.tap.selects_op(path or ROOT):
            targets = [(step.module_call(path or ROOT), f"grad.{word}"), *targets]
        self.put(step, targets, parameter.grad)
