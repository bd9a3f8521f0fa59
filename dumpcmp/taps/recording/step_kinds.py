"""Steps that are not one call of a root module: what is run again, and compiled functions."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from dumpcmp.nouns.record import Call, Phase
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.recording.models import Model, Scopes
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.values import Outlet

_RECOMPUTE = "@recompute"


class Recomputation(Step):
    """What activation checkpointing runs again of a step.

    Its calls are marked as recomputation and hold no values; what gradients it makes belong to
    the calls that it repeats.
    """

    def __init__(self, forward: Step) -> None:
        super().__init__(forward.outlet, forward.model, forward.number)
        self._forward = forward
        self.scopes = Scopes(forward.model.ops, _RECOMPUTE)
        self._phase = Phase.RECOMPUTE
        self.orders = forward.orders
        self.watcher = forward.watcher

    def store(self, call: Call, found: Slots) -> None:
        """Nothing: the forward's values are known."""

    def watch(self, call: Call, found: Slots) -> None:
        """Watch for gradients as those of the call that `call` repeats."""
        repeated = self._forward.call_named(call.op.replace(_RECOMPUTE, ""), call.call)
        if repeated is not None:
            self._forward.watch(repeated, found)


class FunctionStep(Step):
    """One call of a compiled function, in whose graphs the modules that it calls have theirs.

    `begin` begins a step of a module.
    """

    is_function = True

    def __init__(
        self,
        outlet: Outlet,
        model: Model,
        number: int,
        begin: Callable[[nn.Module], Step | None],
        is_silent: bool,
    ) -> None:
        super().__init__(outlet, model, number)
        self.is_silent = is_silent
        if is_silent:  # what it does not select, others may
            self.scopes = Scopes({})
        self._begin = begin
        self._inner: dict[tuple[str, int], Step] = {}

    def begin_inner(self, root: nn.Module) -> Step | None:
        step = self._begin(root)
        if step is not None:
            self._inner[step.model.name, step.number] = step
        return step

    def all_steps(self) -> list[Step]:
        return [self, *self._inner.values()]

    def owner_of(self, call: Call) -> Step:
        return self._inner.get((call.model, call.step), self)


def recomputation_of(step: Step) -> Step:
    """The step in which activation checkpointing runs parts of `step` again."""
    if step.again is None:
        step.again = Recomputation(step)
    return step.again
