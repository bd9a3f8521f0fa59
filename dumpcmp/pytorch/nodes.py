"""The part of autograd's graph that one call made: what it was given backward, and what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Edge = tuple[Any, int]  # a node, and which of the gradients that it takes
SlotGrads = dict[str, Tensor]  # by slot
Arrived = Callable[
    [SlotGrads, SlotGrads], None
]  # is told what was given backward, and what came out

_MOST = 64  # nodes of one call


def edge_of(tensor: Tensor) -> Edge | None:
    """Where the gradient of `tensor` is taken to; None where it has none."""
    if not tensor.requires_grad:
        return None
    found = torch.autograd.graph.get_gradient_edge(tensor)
    return found.node, found.output_nr


def device_of(tensors: Iterable[Tensor]) -> str:
    """The type of the device that a call runs on, as what it is given tells."""
    kinds = [tensor.device.type for tensor in tensors]
    return next((kind for kind in kinds if kind != "cpu"), "cpu")


def watch_backward(
    took: Sequence[tuple[str, Edge]],
    gave: Sequence[tuple[str, Tensor]],
    done: Arrived,
    missed: Callable[[str], None],
) -> None:
    """Have `done` called when a backward pass has come through a call.

    Where that is of too many nodes to be watched, `missed` is called with the reason. `took` are
    the edges of what it was given, from before it ran; `gave` is what it gave out. What is taken
    twice is told under its first slot. Hooks hold no node, so that a graph that nobody goes back
    through is freed as ever.
    """
    edges: dict[Edge, str] = {}
    for slot, edge in took:
        edges.setdefault(edge, slot)
    ends = [(slot, tensor.grad_fn, tensor.output_nr) for slot, tensor in gave if tensor.grad_fn]
    ends = [end for end in ends if end[1:] not in edges]  # else it gave what it took
    nodes = _between([node for _, node, _ in ends], edges)
    if nodes is None:
        told = f"its backward pass has more than {_MOST} nodes"
        ends[0][1].register_hook(lambda *_: missed(told))
        return
    if not nodes or not any(nodes.values()):
        return
    passage = _Passage(len(nodes), done)
    for node, crossings in nodes.items():
        outputs = {number: slot for slot, end, number in ends if end is node}
        node.register_hook(passage.hook(outputs, crossings))


def _between(starts: Sequence[Any], edges: Mapping[Edge, str]) -> dict[Any, dict[int, str]] | None:
    """The nodes from `starts` to `edges`, and which of what they give goes where; None if many."""
    found: dict[Any, dict[int, str]] = {}
    waiting = list(dict.fromkeys(starts))
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if len(found) == _MOST:
            return None
        crossings = found[node] = {}
        for index, edge in enumerate(node.next_functions):
            if edge in edges:
                crossings[index] = edges[edge]
            elif edge[0] is not None and _is_shared_cast(edge[0]):
                taken = next((each for each in edge[0].next_functions if each in edges), None)
                if taken is not None:
                    crossings[index] = edges[taken]  # of the tensor as it was cast
            elif edge[0] is not None:
                waiting.append(edge[0])
    return found


def _is_shared_cast(node: Any) -> bool:
    """Whether it is the cast of a parameter that autocast makes once for all who take it."""
    if not torch._C._is_any_autocast_enabled() or node.name() != "ToCopyBackward0":
        return False
    return any(after is not None and not after.next_functions for after, _ in node.next_functions)


class _Passage:
    """Gathers what the nodes of one call are given and give, until all have run."""

    def __init__(self, num_nodes: int, done: Arrived) -> None:
        self._num_nodes, self._done = num_nodes, done
        self._begin()

    def _begin(self) -> None:
        self._left = self._num_nodes
        self._given: SlotGrads = {}
        self._made: SlotGrads = {}

    def hook(
        self, outputs: Mapping[int, str], crossings: Mapping[int, str]
    ) -> Callable[[Any, Any], None]:
        """The hook of one node, which takes gradients of `outputs` and sends some over an edge."""

        def fired(made: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
            for number, slot in outputs.items():
                grad = given[number]
                if grad is not None:
                    self._given[slot] = grad.detach()
            for index, slot in crossings.items():
                grad = made[index]
                if grad is not None:
                    known = self._made.get(slot)
                    self._made[slot] = grad.detach() if known is None else known + grad.detach()
            self._left -= 1
            if not self._left:
                given_back, made_back = self._given, self._made
                self._begin()
                self._done(given_back, made_back)

        return fired
