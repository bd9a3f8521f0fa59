"""Small models, and faults to plant into the compiler while it compiles them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

ATEN = torch.ops.aten


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.mlp(x)
        return x + inner


class Net(nn.Module):
    """A residual net with a scaled difference at its end: each kind of fault has its op."""

    def __init__(self, width: int = 8, num_blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.relu(self.head(x) - x) * 0.5


def normed(affine: bool = True) -> tuple[nn.Module, Tensor]:
    """One op that becomes many, and sums over rows, in a model that is soon compiled."""
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8, elementwise_affine=affine), nn.Tanh()), torch.randn(2, 8)


def net(seed: int = 0) -> tuple[Net, Tensor]:
    """A Net and an input for it."""
    torch.manual_seed(seed)
    return Net(), torch.randn(2, 8)  # as many as a vector holds: one loop a kernel


@dataclass(frozen=True)
class Fault:
    """A fault of the compiler, and the op at which a comparison must find it."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    op: str
    backward: bool = False
    slot: str = "output.0"


def _pass(change: Callable[[fx.Graph], None]) -> Callable[[], AbstractContextManager[Any]]:
    """Plant `change` as a pass over the post-grad graph."""
    from torch._inductor import config

    return lambda: config.patch(post_grad_custom_pre_pass=change)


def _nodes(graph: fx.Graph, target: Any, module: str, backward: bool = False) -> list[fx.Node]:
    """The nodes of `graph` that call `target` for `module`; none in the other kind of graph."""
    if backward != any(node.name.startswith("tangents") for node in graph.nodes):
        return []
    calls = graph.find_nodes(op="call_function", target=target)
    return [node for node in calls if _module(node) == module]


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((path for path, _ in reversed(stack.values())), "")
    return re.sub(r"^.*?(?=blocks|head|$)", "", path)


def mul_becomes_add(graph: fx.Graph) -> None:
    for node in _nodes(graph, ATEN.mul.Tensor, "blocks.1.mlp"):
        node.target = ATEN.add.Tensor


def residual_is_dropped(graph: fx.Graph) -> None:
    for node in _nodes(graph, ATEN.add.Tensor, "blocks.0"):
        kept = node.args[1]
        assert isinstance(kept, fx.Node)
        node.replace_all_uses_with(kept)
        graph.erase_node(node)


def sub_is_swapped(graph: fx.Graph) -> None:
    for node in _nodes(graph, ATEN.sub.Tensor, ""):
        node.args = node.args[::-1]


def sub_of_rewritten_is_swapped(graph: fx.Graph) -> None:
    """Besides, the head's addmm becomes mm and add, as it does on a GPU."""
    for node in _nodes(graph, ATEN.addmm.default, "head"):
        bias, *factors = node.args
        with graph.inserting_before(node):
            product = graph.call_function(ATEN.mm.default, tuple(factors))
            total = graph.call_function(ATEN.add.Tensor, (product, bias))
        for new in (product, total):
            new.meta |= {word: node.meta[word] for word in ("val", "from_node", "stack_trace")}
        node.replace_all_uses_with(total)
        graph.erase_node(node)
    sub_is_swapped(graph)


def gradient_mul_becomes_add(graph: fx.Graph) -> None:
    for node in _nodes(graph, ATEN.mul.Tensor, "blocks.1.mlp", backward=True)[:1]:
        node.target = ATEN.add.Tensor


@contextmanager
def wrong_constant() -> Iterator[None]:
    """A lowering of multiplication that takes 0.5 for 0.55; caches know nothing of lowerings."""
    from torch._inductor import config, lowering

    right = lowering.lowerings[ATEN.mul.Tensor]

    def wrong(a: Any, b: Any) -> Any:
        return right(a, 0.55 if b == 0.5 else b)

    lowering.lowerings[ATEN.mul.Tensor] = wrong
    try:
        with config.patch(force_disable_caches=True):
            yield
    finally:
        lowering.lowerings[ATEN.mul.Tensor] = right


FAULTS = (
    Fault("mul becomes add", _pass(mul_becomes_add), "blocks.1.mlp/mul"),
    Fault("residual is dropped", _pass(residual_is_dropped), "blocks.0/add"),
    Fault("sub is swapped", _pass(sub_is_swapped), "<root>/sub"),
    Fault("sub of what was rewritten", _pass(sub_of_rewritten_is_swapped), "<root>/sub"),
    Fault("wrong constant", wrong_constant, "<root>/mul"),
    Fault(
        "gradient mul becomes add",
        _pass(gradient_mul_becomes_add),
        "blocks.1.mlp/mul",
        backward=True,
        slot="grad_input.1",
    ),
)
