"""Finds what took the place of a node that a pass of the compiler removed or rewrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Use:
    """Where a node was used: which argument of which node."""

    user: str
    target: Any
    position: int
    num_leaves: int


@dataclass(frozen=True, slots=True)
class Known:
    """A node before the passes ran: its kind of value, and all its uses."""

    name: str
    kind: str  # shape and dtype
    uses: tuple[Use, ...]


def known_before(node: fx.Node) -> Known:
    """What is needed to find the successor of `node`, should it vanish."""
    return Known(node.name, kind_of(node), tuple(_uses(node)))


def _uses(node: fx.Node) -> Iterator[Use]:
    for user in node.users:
        leaves = pytree.tree_leaves((user.args, user.kwargs))
        for position, leaf in enumerate(leaves):
            if leaf is node:
                yield Use(user.name, user.target, position, len(leaves))


def kind_of(node: fx.Node) -> str:
    """Shape and dtype of the value of `node`, as text: to compare symbols would fix them."""
    value = node.meta.get("val")
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else ""


def successor(known: Known, nodes: dict[str, fx.Node]) -> fx.Node | None:
    """The node that all former users of a vanished node now take in its stead.

    It stands for the vanished node, with the right value or, where a pass is at fault, a wrong
    one. None where the users are gone too, disagree, or take a value of another kind.
    """
    found = {_now_at(use, nodes) for use in known.uses} - {None}
    if len(found) != 1:
        return None
    (node,) = found
    return node if node is not None and kind_of(node) == known.kind else None


def _now_at(use: Use, nodes: dict[str, fx.Node]) -> fx.Node | None:
    user = nodes.get(use.user)
    if user is None or user.target != use.target:
        return None
    leaves = pytree.tree_leaves((user.args, user.kwargs))
    leaf = leaves[use.position] if len(leaves) == use.num_leaves else None
    return leaf if isinstance(leaf, fx.Node) else None
