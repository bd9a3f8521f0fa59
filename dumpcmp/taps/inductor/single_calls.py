"""Ops that a graph calls once and no more: what they gave out there is handed to its twin."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dumpcmp.pytorch.names import private

_REPEATABLE = ("", "aten", "prims", "inductor", "inductor_prims")  # "": Python's own operators


def is_repeatable(target: object) -> bool:
    """Whether a second call of `target` does nothing but compute once more."""
    return getattr(target, "namespace", "") in _REPEATABLE


def unrepeatable(nodes: fx.Graph) -> str:
    """Why the graph can have no twin; empty if it can.

    Inductor calls a custom op as it stands, which the twin does not: it takes what that gave out.
    That will not do for what writes to its arguments, or is lowered to other calls, as
    collectives are.
    """
    called = private("torch._inductor.lowering:fallbacks")
    for node in nodes.nodes:
        if node.op != "call_function" or is_repeatable(node.target):
            continue
        if node.target not in called or _writes(node.target):
            return f"{node.target} may do more than compute"
    return ""


def has_single_calls(nodes: fx.Graph) -> bool:
    """Whether a graph that can have a twin calls ops that the twin must not call."""
    return any(n.op == "call_function" and not is_repeatable(n.target) for n in nodes.nodes)


def _writes(op: Any) -> bool:
    """Whether `op` writes to what it takes, or gives a view of it; one without a schema may."""
    schema = getattr(op, "_schema", None)
    if schema is None:  # a higher-order op, such as one that keeps the random state
        return True
    told: Sequence[Any] = (*schema.arguments, *schema.returns)
    return any(each.alias_info is not None for each in told)


class SingleCalls:
    """What the ops of one run of a graph gave out that must not be called again."""

    def __init__(self) -> None:
        self._given: defaultdict[object, deque[Any]] = defaultdict(deque)

    def keeping(self) -> TorchDispatchMode:
        """While the graph runs: copies, since it may write to what it was given."""
        return _Between(self._keep)

    def giving(self) -> TorchDispatchMode:
        """While the twin runs.

        Calls are told apart by their order alone. A twin in another order computes with other
        values, and its kernels then vouch for nothing.
        """
        return _Between(self._give)

    def _keep(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = op(*args, **kwargs)
        self._given[op].append(pytree.tree_map_only(Tensor, torch.clone, given))
        return given

    def _give(self, op: Any, *_: object) -> Any:
        if not self._given[op]:
            raise LookupError(f"{op} is called more often than by the graph")
        return self._given[op].popleft()


class _Between(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has `call` answer for ops that must not be called again, and lets all else pass."""

    def __init__(self, call: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(
        self, op: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if is_repeatable(op):
            return op(*args, **kwargs or {})
        return self._call(op, args, kwargs or {})
