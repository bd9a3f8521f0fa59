"""Gradients of recorded values: one hook a tensor, removed when it fires or the capture ends."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.taps.distributed import ranks as distributed

if TYPE_CHECKING:
    from dumpcmp.taps.recording.arguments import Slots
    from dumpcmp.taps.recording.models import Model
    from dumpcmp.taps.recording.recorder import Recorder, Step


class Watches:
    """The hooks of a whole capture, so that all can be removed at its end."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._parameters: dict[int, RemovableHandle] = {}
        self._tensors: dict[int, RemovableHandle] = {}
        self._running: weakref.WeakKeyDictionary[Model, Step] = weakref.WeakKeyDictionary()

    def begin(self, step: Step, root: nn.Module | None) -> None:
        """Watch the tensors of `step` and the parameters of `root`."""
        step.gradients = Gradients(self, step)
        for name, parameter in root.named_parameters() if root is not None else ():
            if parameter.requires_grad and id(parameter) not in self._parameters:
                hook = partial(self._parameter_fired, step.model, name.replace("_orig_mod.", ""))
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._parameters[id(parameter)] = handle

    def running(self, step: Step) -> None:
        """Remember that the backward pass has come to `step` of its model."""
        self._running[step.model] = step

    def remove(self) -> None:
        """Remove every hook that has not fired."""
        for handle in (*self._parameters.values(), *self._tensors.values()):
            handle.remove()
        self._parameters.clear()
        self._tensors.clear()

    def add(self, tensor: Tensor, gradients: Gradients, places: list[tuple[Call, str]]) -> None:
        """Hook `tensor`, whose gradient is recorded at all of `places`."""
        fired = partial(self._fired, gradients, places)
        handle = tensor.register_hook(fired)  # type: ignore[no-untyped-call]
        self._tensors[id(places)] = handle
        if len(self._tensors) % 4096 == 0:
            self._forget_freed()

    def _fired(
        self, gradients: Gradients, places: list[tuple[Call, str]], grad: Tensor | None
    ) -> None:
        if grad is None:  # compiled code tells so of outputs that nothing was computed from
            return
        handle = self._tensors.pop(id(places), None)
        if handle is None:
            return
        handle.remove()
        self.running(gradients.step)
        with DisableTorchFunction(), DisableTorchDispatch():
            gradients.put(places, grad)

    def _parameter_fired(self, model: Model, name: str, parameter: Tensor) -> None:
        step = self._running.get(model) or model.step
        if step is None:
            return
        path, _, word = name.rpartition(".")
        if distributed.is_distributed():  # the gradient is whole only after its reduction
            put = partial(step.gradients.put_reduced, path, word, parameter)
            distributed.after_backward(put)
        elif parameter.grad is not None:
            with DisableTorchFunction(), DisableTorchDispatch():
                step.gradients.put_parameter(path, word, parameter.grad)

    def _forget_freed(self) -> None:
        alive = {k: h for k, h in self._tensors.items() if h.hooks_dict_ref() is not None}
        self._tensors = alive


def address_of(tensor: Tensor) -> tuple[Any, ...]:
    """Where the elements of `tensor` lie."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.device


class Gradients:
    """The gradients of one step: which tensors are watched, and where each is recorded."""

    def __init__(self, watches: Watches, step: Step) -> None:
        self.step = step
        self._watches = watches
        self._places: dict[Any, list[tuple[Call, str]]] = {}
        self._watched: set[tuple[str, int, str]] = set()
        self._recorded: set[tuple[str, str]] = set()

    def watch(self, call: Call, found: Slots) -> None:
        """Record the gradients of `found` as slots of `call`, once they are known.

        A tensor is known by the autograd node that made it, so that what an in-place op makes
        of it is another one. Parameters are watched on their own.
        """
        for slot, tensor in found:
            if not tensor.requires_grad or isinstance(tensor, nn.Parameter):
                continue
            if (call.op, call.call, slot) in self._watched:  # a recomputation repeats it
                continue
            self._watched.add((call.op, call.call, slot))
            tensor = distributed.origin_of(tensor)
            if not tensor.requires_grad:  # a graph keeps only what it needs of a DTensor
                continue
            node = tensor.grad_fn
            if self._asks(tensor, call, slot):
                continue
            which = (id(tensor),) if node is None else (node._sequence_nr(), tensor.output_nr)
            places = self._places.get(which)
            if places is None:
                places = self._places[which] = []
                self._watches.add(tensor, self, places)
            places.append((call, f"grad_{slot}"))

    def _asks(self, tensor: Tensor, call: Call, slot: str) -> bool:
        """Ask the compiled graph that gave `tensor`: what it added to the gradient is inside it."""
        if type(tensor.grad_fn).__name__ != "CompiledFunctionBackward":
            return False
        wants = self.step.shared.get(address_of(tensor))
        if wants is not None:
            wants.append((self.step, call, f"grad_{slot}"))
        return wants is not None

    def begin(self) -> None:
        """The backward pass has reached this step: gradients of parameters now belong to it."""
        self._watches.running(self.step)

    def put(self, places: list[tuple[Call, str]], grad: Tensor) -> None:
        """Record `grad` at the first of `places`, and links to it at the others."""
        first = None
        for call, slot in places:
            key = self.step.put(call, slot, grad, same_as=first)
            first = first or key

    def put_reduced(self, path: str, word: str, parameter: Tensor) -> None:
        """Record the gradient that `parameter` has once all ranks have added theirs."""
        if parameter.grad is not None:
            self.put_parameter(path, word, parameter.grad)

    def put_parameter(self, path: str, word: str, grad: Tensor) -> None:
        """Record the gradient that a parameter has after the backward pass of this step."""
        op = path or "<root>"
        if (op, word) in self._recorded or not self.step.tap.selects_op(op):
            return
        self._recorded.add((op, word))
        self.step.put(self.step.module_call(op), f"grad.{word}", grad)
