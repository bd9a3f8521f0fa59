"""Runs the graph of an exported program node by node, each in the scope of its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from dumpcmp.taps.modes.around import carried_out
from dumpcmp.taps.modes.aten import aten_function
from dumpcmp.taps.modes.function_mode import recorded
from dumpcmp.taps.modes.traced import NodeHome, Spots
from dumpcmp.taps.recording.calls import traced_line
from dumpcmp.taps.recording.step import Step

_ATEN = torch.ops.aten


class ProgramRunner(fx.Interpreter):
    """One run of a graph; ops of the dispatcher are recorded, and those in bodies of control flow.

    `weights` are the paths of modules by the ids of their weights: a node of a body does not say
    which module it is of.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        step: Step,
        weights: Mapping[int, str],
        spots: Spots | None = None,
    ) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.step, self.weights = step, weights
        self.is_body = spots is not None
        self.spots = spots or Spots(step)

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        self.spots.step_of(self._home(n))
        try:
            return super().run_node(n)
        finally:
            self.spots.leave()

    def _home(self, node: fx.Node) -> NodeHome:
        """The module that a node belongs to, and the call of it."""
        line = traced_line(node.meta.get("stack_trace"))
        stack = node.meta.get("nn_module_stack") or {}
        if self.is_body and not stack:
            path = self._path_of_weight(node)
            return NodeHome(path, False, path, line)
        if not stack:
            return NodeHome("", False, "", line)
        instance = next(reversed(stack))
        path = str(stack[instance][0])
        return NodeHome(path, False, instance if path else "", line)

    def _path_of_weight(self, node: fx.Node) -> str:
        taken = (self.env.get(each) for each in node.all_input_nodes)
        return next((self.weights[id(each)] for each in taken if id(each) in self.weights), "")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a node, recorded if it is an op that gives tensors."""
        if isinstance(target, torch._ops.HigherOrderOperator):
            unroll = _UNROLLED.get(target.__name__)
            if unroll is not None:
                return unroll(self, *args, **kwargs)
            bodies = [self._running(each) if isinstance(each, fx.GraphModule) else each
                      for each in args]  # fmt: skip
            runs_bodies = target.__name__ in _WRAPPING
            return target(*(bodies if runs_bodies else args), **kwargs)
        if not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        return self.run_op(target, args, kwargs)

    def run_op(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Run an op of the dispatcher, recorded if it gives tensors."""
        function = aten_function(op)
        if not function.name:
            return op(*args, **kwargs)
        return carried_out(recorded(self.step, function, op, args, kwargs))

    def run_body(self, body: fx.GraphModule, operands: Any) -> Any:
        """Run a graph inside of this one, recorded as this one is."""
        return ProgramRunner(body, self.step, self.weights, self.spots).run(*operands)

    def _running(self, body: fx.GraphModule) -> Callable[..., Any]:
        return lambda *operands: self.run_body(body, operands)


# Control flow is written out: what runs of a branch, each iteration of a loop, and what a scan
# takes and puts together. torch computes the same, and the certificate of the run says so.


def _cond(runner: ProgramRunner, condition: Any, yes: Any, no: Any, operands: Any) -> Any:
    return runner.run_body(yes if bool(condition) else no, operands)


def _while_loop(
    runner: ProgramRunner, goes_on: Any, body: Any, carried: Any, extra: Any = ()
) -> Any:
    state, is_first = tuple(carried), True
    while bool(_only(runner.run_body(goes_on, (*state, *extra)))):
        state, is_first = tuple(runner.run_body(body, (*state, *extra))), False
    if is_first:
        return tuple(each.clone() if isinstance(each, Tensor) else each for each in state)
    return state


def _only(found: Any) -> Any:
    return found[0] if isinstance(found, (tuple, list)) else found


def _scan(runner: ProgramRunner, body: Any, init: Any, xs: Any, extra: Any = ()) -> Any:
    state, rows = tuple(init), []
    for at in range(xs[0].shape[0]):
        slices = [runner.run_op(_ATEN.select.int, (x, 0, at), {}) for x in xs]
        given = runner.run_body(body, (*state, *slices, *extra))
        state = tuple(given[: len(state)])
        rows.append(given[len(state) :])
    return [*state, *_stacked(runner, rows)]


def _map(runner: ProgramRunner, body: Any, xs: Any, extra: Any = ()) -> Any:
    rows = []
    for at in range(xs[0].shape[0]):
        slices = [runner.run_op(_ATEN.select.int, (x, 0, at), {}) for x in xs]
        rows.append(runner.run_body(body, (*slices, *extra)))
    return _stacked(runner, rows)


def _stacked(runner: ProgramRunner, rows: list[Any]) -> list[Any]:
    columns = zip(*rows, strict=True)
    return [runner.run_op(_ATEN.stack.default, (list(column),), {}) for column in columns]


def _subgraph(runner: ProgramRunner, body: Any, identifier: str, *operands: Any) -> Any:  # noqa: ARG001
    return runner.run_body(body, operands)


_UNROLLED: dict[str, Callable[..., Any]] = {
    "cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map,
    "invoke_subgraph": _subgraph,
}  # fmt: skip
_WRAPPING = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
