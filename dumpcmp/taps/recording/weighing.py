"""The parameters and buffers of a step, each recorded as its module comes up."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.module_trees import modules_of
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.values import Values


class Weighing:
    """Parameters and buffers that are still to be recorded, by module."""

    def __init__(self, values: Values, digests: dict[tuple[str, str], str] | None = None) -> None:
        self.left: dict[str, Slots] = {}
        self._values, self._in_brief = values, False
        self._digests = {} if digests is None else digests  # of what was recorded last

    def hold(self, weights: dict[str, Slots], in_brief: bool) -> None:
        """Record `weights`, each as its module comes up; `in_brief`, unless all are kept whole."""
        self.left.update(weights)  # C knows this dictionary
        self._in_brief = in_brief

    def put(self, call: Call, path: str) -> None:
        """Record those of the module at `path`, which `call` is the first call of."""
        with DisableTorchFunction(), DisableTorchDispatch():
            for slot, tensor in self.left.pop(path, ()):
                digest = self._values.put_weight(call, slot, tensor, self._in_brief)
                self._digests[path, slot] = digest


def weights_of(root: nn.Module, model: Model) -> dict[str, Slots]:
    """The parameters and buffers of all modules of `root`, by the paths that `model` has."""
    modules = list(modules_of(root))
    if any(id(module) not in model.paths for module in modules):  # added since the last step
        model.learn(root)
    found = {model.paths[id(module)]: own_weights(module) for module in modules}
    return {path: slots for path, slots in found.items() if slots}


def own_weights(module: nn.Module) -> Slots:
    """The parameters and buffers of `module` alone.

    Torch's own iterators take five times as long, at every step.
    """
    parameters, buffers = module._parameters, module._buffers
    if not parameters and not buffers:
        return []
    found: list[tuple[str, Any]] = [
        *((f"param.{name}", value) for name, value in parameters.items()),
        *((f"buffer.{name}", value) for name, value in buffers.items()),
    ]
    return [(s, value) for s, value in found if value is not None and not is_lazy(value)]
