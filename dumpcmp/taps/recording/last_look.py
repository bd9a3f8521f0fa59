"""Looks once more at models that go before their run ends: at what they became after a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dumpcmp.handlers import HOLD
from dumpcmp.pytorch.module_trees import named_modules_of
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.weighing import own_weights

ModuleWeights = dict[str, Slots]  # by the path of their module


class LastLook:
    """Hears of modules as they go, by weak references alone: none lives longer for it.

    When the last reference to a module is dropped, what is in it is still there, and `look` is
    given its weights. What the garbage collector frees in a cycle is gone by then.
    """

    def __init__(
        self, is_quiet: Callable[[], bool], look: Callable[[Step, ModuleWeights], None]
    ) -> None:
        self.ended: dict[str, int] = {}  # the last steps of models that are gone
        self.step: Step | None = None  # of the one that went last
        self._is_quiet, self._look = is_quiet, look
        self._watched: dict[int, _Watched] = {}

    def watch(self, root: nn.Module, step: Step) -> None:
        """`step` is the latest of `root`."""
        number = id(root)
        known = self._watched.get(number)
        if known is None or known.ref() is not root:
            known = self._watched[number] = _Watched(root, lambda _: self._gone(number))
        known.renew(root, step)

    def close(self) -> None:
        """The run ends: models that go from now on are none of its own."""
        self._watched.clear()

    def _gone(self, number: int) -> None:
        gone = self._watched.pop(number)
        self.step = step = gone.step
        self.ended[step.model.name] = step.model.num_steps - 1
        weights = gone.weights() if HOLD.depth == 0 and self._is_quiet() else {}
        if weights:
            self._look(step, weights)


class _Watched:
    """A module that has run: its latest step, and what it holds."""

    __slots__ = ("_inner", "_model", "_own", "_paths", "ref", "step")

    step: Step

    def __init__(self, root: nn.Module, gone: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(root, gone)
        self._paths: dict[int, str] | None = None
        self._inner: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._own: list[tuple[str, weakref.ref[Tensor]]] = []

    def renew(self, root: nn.Module, step: Step) -> None:
        """Know what `root` holds now."""
        model: Model = step.model
        self.step = step
        self._own = [(slot, weakref.ref(tensor)) for slot, tensor in own_weights(root)]
        if self._paths is not model.paths:
            self._paths = model.paths
            inner = (module for _, module in named_modules_of(root) if module is not root)
            known = ((self._paths.get(id(module)), module) for module in inner)
            self._inner = [(path, weakref.ref(one)) for path, one in known if path is not None]

    def weights(self) -> ModuleWeights:
        """Its parameters and buffers by module; none if some are gone already."""
        inner = [(path, ref()) for path, ref in self._inner]
        own = [(slot, ref()) for slot, ref in self._own]
        if any(one is None for _, one in [*inner, *own]):
            return {}
        found = {"": [(slot, tensor) for slot, tensor in own if tensor is not None]}
        found |= {path: own_weights(module) for path, module in inner if module is not None}
        return {path: slots for path, slots in found.items() if slots}
