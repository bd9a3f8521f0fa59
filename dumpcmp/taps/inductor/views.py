"""View ops of a graph as plain lists, so that they can be replayed on a captured value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

View = list[Any]  # [name of the op, its arguments after the tensor]: JSON, as it lies in caches
Sizes = list[object]  # the symbolic sizes that views refer to: "0" is the first

_ATEN = torch.ops.aten

_SAME = ("alias", "clone", "detach", "lift_fresh_copy")  # equal in shape and value
_RESHAPES = ("view", "_unsafe_view", "reshape")  # may meet other strides than they were traced with
_PLAIN = (
    *("permute", "t", "transpose", "expand", "slice", "select", "squeeze", "unsqueeze"),
    *("split", "split_with_sizes", "unbind", "diagonal", "unfold"),
)
# Only what never computes: the elements of the result are elements of the input.
_VIEWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_SAME, _ATEN.alias),
    **dict.fromkeys(_RESHAPES, _ATEN.reshape),
    **{name: getattr(_ATEN, name) for name in _PLAIN},
    "_reshape_alias": lambda tensor, size, _stride: tensor.reshape(size),
    "getitem": operator.getitem,
}


def view_name(node: fx.Node) -> str:
    """The name under which the view `node` is replayed; empty if it is no view."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        parent = node.args[0]
        return "getitem" if isinstance(parent, fx.Node) and view_name(parent) else ""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None or getattr(node.target, "namespace", "") != "aten":
        return ""
    if getattr(node.target, "_overloadname", "") == "dtype":
        return ""
    name = str(packet).removeprefix("aten.")
    return name if name in _VIEWS else ""


def is_same(node: fx.Node) -> bool:
    """Whether `node` has just the value of its input."""
    return view_name(node) in _SAME


def views_of(node: fx.Node, sizes: Sizes) -> Iterator[tuple[fx.Node, list[View]]]:
    """`node` and every view of it, each with the views that lead there."""
    waiting: list[tuple[fx.Node, list[View]]] = [(node, [])]
    while waiting:
        view, views = waiting.pop()
        yield view, views
        for user in view.users:
            if view_name(user) and user.args and user.args[0] is view:
                next_view = _view(user, sizes)
                if next_view is not None:
                    waiting.append((user, [*views, next_view]))


def base_of(node: fx.Node) -> fx.Node:
    """The node that computes what `node` is a view of."""
    while view_name(node):
        parent = node.args[0]
        assert isinstance(parent, fx.Node)
        node = parent
    return node


def _view(node: fx.Node, sizes: Sizes) -> View | None:
    """`node` as a View, or None where an argument cannot be written down."""
    name = view_name(node)
    if name in _SAME:
        return [name, []]
    args = list(node.args[1:])
    if node.kwargs:
        schema: Any = getattr(node.target, "_schema", None)
        words = [argument.name for argument in schema.arguments][len(node.args) :]
        args += [node.kwargs[word] for word in words if word in node.kwargs]
    try:
        return [name, pytree.tree_map(partial(_written, sizes), args)]
    except TypeError:
        return None


def _written(sizes: Sizes, argument: object) -> int | str | None:
    if isinstance(argument, fx.Node):
        argument = argument.meta.get("val")
    if isinstance(argument, torch.SymInt):
        sizes.append(argument)
        return str(len(sizes) - 1)
    if argument is None or type(argument) in (int, bool):
        return argument  # type: ignore[return-value]
    raise TypeError(f"no view takes {argument!r}")


def replay(tensor: Tensor, views: Sequence[View], sizes: Sequence[int]) -> Tensor:
    """Take `views` of `tensor`, one after the other."""
    value: Any = tensor
    for name, args in views:
        if sizes:
            args = pytree.tree_map_only(str, lambda word: sizes[int(word)], args)
        value = _VIEWS[name](value, *args)
    assert isinstance(value, Tensor)
    return value
